// Package redact removes secrets from text that leaves the host.
//
// Its input is the text of commands, logs and files, and the configuration, which names files with
// secrets. Its output is the text without what these files contain, and without what looks like a
// secret: values of keys such as "token" and "password", private keys in PEM, credentials of HTTP
// and of URLs, and tokens of ironvip. It removes too much rather than too little.
package bugreport

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Removed stands in place of a secret.
const Removed = "REMOVED"

// minSecret is the length from which the content of a file counts as a secret. A shorter one would
// remove parts of words.
const minSecret = 4

// maxSecretFile bounds the files that are read for their secrets.
const maxSecretFile = 1 << 20

// Redactor removes secrets. Add all configuration before the first Clean.
type Redactor struct{ known []string }

// New returns a Redactor that knows no secret of this host.
func New() *Redactor { return &Redactor{} }

// secretKey matches a key whose value is a secret, with the value. The value is a quoted string, or
// ends with a space or a comma.
var secretKey = regexp.MustCompile(`(?i)(\\?["']?[\w.-]*(?:token|secret|passwor?d|passphrase|credential|api[_-]?key|private[_-]?key|key[_-]data|authorization|cookie)[\w.-]*\\?["']?\s*(?:[:=]|=>)\s*)("""|'''|\\"[^"\\]*\\"|"(?:\\.|[^"\\])*"|'[^']*'|[^\s,}\]]+)`)

var (
	// secretFile matches a key that names a file with a secret, and the name.
	secretFile = regexp.MustCompile(`(?m)^\s*(?:[\w.-]*\s*=\s*\{.*?)?([\w.-]*(?:token|password|secret|key)_file|kubeconfig)\s*=\s*["']([^"']+)["']`)
	privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`)
	header     = regexp.MustCompile(`(?i)\b(bearer|basic|x-consul-token:?)\s+[\w.~+/=-]{4,}`)
	userinfo   = regexp.MustCompile(`(://)[^\s/@:"']*:[^\s/@"']+@`)
	ownToken   = regexp.MustCompile(`ironvip_[\w-]{20,}`)
	// multiline matches a string of TOML over several lines, with its key.
	multiline = regexp.MustCompile(`(?is)([\w.-]*(?:token|secret|passwor?d|passphrase|credential|private[_-]?key|api[_-]?key)[\w.-]*\s*=\s*)("""|''').*?("""|'''|\z)`)
)

// AddConfig reads a file of the configuration: what the files contain that its keys name is a secret.
// Relative names are those of the file's directory.
func (r *Redactor) AddConfig(path string, text []byte) {
	for _, m := range secretFile.FindAllSubmatch(text, -1) {
		name := string(m[2])
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxSecretFile {
			continue
		}
		if secret, err := os.ReadFile(name); err == nil {
			r.addFile(secret)
		}
	}
}

// addFile adds each line of a file with secrets.
func (r *Redactor) addFile(text []byte) {
	for line := range strings.Lines(string(text)) {
		for _, word := range append(strings.Fields(line), strings.TrimSpace(line)) {
			if word = strings.Trim(word, `"'`); len(word) >= minSecret && !strings.HasPrefix(word, "-----") && !strings.HasSuffix(word, ":") && !slices.Contains(r.known, word) {
				r.known = append(r.known, word)
			}
		}
	}
	slices.SortFunc(r.known, func(a, b string) int { return cmp.Compare(len(b), len(a)) }) // the longest first
}

// Clean returns a text without secrets.
func (r *Redactor) Clean(text []byte) []byte {
	text = privateKey.ReplaceAll(text, []byte(Removed))
	text = multiline.ReplaceAll(text, []byte("${1}\""+Removed+"\""))
	for _, secret := range r.known {
		text = bytes.ReplaceAll(text, []byte(secret), []byte(Removed))
	}
	text = header.ReplaceAll(text, []byte("${1} "+Removed))
	text = userinfo.ReplaceAll(text, []byte("${1}"+Removed+"@"))
	text = ownToken.ReplaceAll(text, []byte(Removed))
	return secretKey.ReplaceAllFunc(text, func(match []byte) []byte {
		m := secretKey.FindSubmatch(match)
		if isPath(string(m[1])) {
			return match
		}
		switch {
		case bytes.HasPrefix(m[2], []byte(`\"`)):
			return append(slices.Clone(m[1]), `\"`+Removed+`\"`...)
		case m[2][0] == '"' || m[2][0] == '\'':
			return append(slices.Clone(m[1]), `"`+Removed+`"`...)
		case string(m[2]) == "{" || string(m[2]) == "[" || strings.HasPrefix(string(m[2]), "[") || strings.HasPrefix(string(m[2]), "{"):
			return match // the keys inside are looked at by themselves
		}
		return append(slices.Clone(m[1]), Removed...)
	})
}

// isPath reports whether the value of a key is the name of a file.
func isPath(key string) bool {
	key = strings.TrimRight(key, " \t:=>\"'\\")
	return strings.HasSuffix(key, "_file") || strings.HasSuffix(key, "-file")
}
