package treestatus

import (
	"strings"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/vip"
)

// Removal is the hint to remove a key.
func Removal(of kv.Engine, key string) string {
	return ": " + of.Delete + " " + shellword(key) + "; noticed within 5 minutes, or by ironvip source resync rest"
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

// KeyProblem is the problem of a key in the store.
func KeyProblem(of kv.Engine, key string, err error, hint string) vip.Problem {
	return vip.Problem{Code: vip.CodeInvalid, Place: of.Name + ":" + key, Message: err.Error(), Hint: hint}
}
