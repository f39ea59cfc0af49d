package treestatus

import (
	"errors"
	"regexp"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// Removal is the hint to remove a key.
func Removal(key string) string { return removalBy("consul kv delete ", key) }

// removalOfAll is the hint to remove all keys below a prefix.
func removalOfAll(prefix string) string { return removalBy("consul kv delete -recurse ", prefix) }

func removalBy(command, key string) string {
	return ": " + command + shellword(key) + "; noticed within 5 minutes, or by ironvip source resync rest"
}

// shellword quotes a word for a shell if necessary.
func shellword(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:", r)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// KeyProblem is the problem of a key in Consul.
func KeyProblem(key string, err error, hint string) vip.Problem {
	return vip.Problem{Code: vip.CodeInvalid, Place: "consul:" + key, Message: err.Error(), Hint: hint}
}

var layout = regexp.MustCompile(`^v[0-9]+/$`)

// Foreign returns the problem of a foreign key at a level, or of a foreign folder, whose name ends
// with a slash.
func Foreign(level, name string) vip.Problem {
	if layout.MatchString(name[len(level):]) {
		return KeyProblem(name, errors.New("layout not supported: another release of ironvip keeps its fleet there"),
			"bring all hosts to the same release")
	}
	hint := keepElsewhere + Removal(name)
	if strings.HasSuffix(name, "/") {
		hint = "move it out of the prefix, which belongs to this fleet, or if nobody uses it remove all of it" + removalOfAll(name)
	}
	return KeyProblem(name, errors.New("unknown key: ironvip doesn't use it"), hint)
}

const keepElsewhere = "move it out of the prefix, which belongs to ironvip, or remove it"

// Misplaced returns the problems of keys that don't belong where they are.
func Misplaced(junk map[string]error) map[string]vip.Problem {
	out := make(map[string]vip.Problem, len(junk))
	for key, err := range junk {
		out[key] = KeyProblem(key, err, keepElsewhere+Removal(key))
	}
	return out
}
