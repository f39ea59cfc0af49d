package strict

import (
	"strconv"
	"strings"
)

// maxName bounds the bytes of a name in a message. The keys of our own tables, and the names that Kubernetes
// allows, are shorter.
const maxName = 256

// Name returns the name of a server's object for a message. It cuts a long name.
func Name(s string) string { return shorten(s, maxName) }

// Join returns the path of a key within the table at path. It quotes a key that isn't a bare TOML
// key, so that paths are unambiguous. It cuts a long key.
func Join(path, key string) string {
	if key = Name(key); !bare(key) {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Index returns the path of the i-th item of the list at path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Parent returns the path of the table or list that contains path, or "" for a key at the top.
func Parent(path string) string {
	if strings.HasSuffix(path, "\"") { // a quoted key: skip to its opening quote
		for i := len(path) - 2; i >= 0; i-- {
			if path[i] == '"' && !escaped(path, i) {
				return strings.TrimSuffix(path[:i], ".")
			}
		}
	}
	i := strings.LastIndexAny(path, ".[")
	return path[:max(i, 0)]
}

// escaped reports whether an odd number of backslashes precedes path[i].
func escaped(path string, i int) bool {
	n := 0
	for i--; i >= 0 && path[i] == '\\'; i-- {
		n++
	}
	return n%2 == 1
}

func bare(key string) bool {
	for _, c := range []byte(key) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return key != ""
}
