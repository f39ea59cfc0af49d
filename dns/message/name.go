package message

import (
	"fmt"
	"strconv"
	"strings"
)

// PackName appends a name in wire format and lower case. The name has no escapes. A dot at its end
// is optional, and "" or "." is the root.
func PackName(out []byte, name string) ([]byte, error) {
	start := len(out)
	name = strings.TrimSuffix(name, ".")
	for rest := name; rest != ""; {
		label, after, more := strings.Cut(rest, ".")
		if label == "" || len(label) > 63 || more && after == "" {
			return out[:start], fmt.Errorf("name %q has a label of %d characters: must be 1 to 63", name, len(label))
		}
		out = append(out, byte(len(label)))
		for i := range len(label) {
			c := label[i]
			if c-'A' < 26 {
				c += 'a' - 'A'
			}
			out = append(out, c)
		}
		rest = after
	}
	if out = append(out, 0); len(out)-start > MaxName {
		return out[:start], fmt.Errorf("name %q is longer than %d characters", name, MaxName-2)
	}
	return out, nil
}

// NameString returns a name in wire format as text without a dot at the end; "." is the root. It
// escapes what is no printable character, and dots inside labels, as RFC 4343 does.
func NameString[S ~string | ~[]byte](wire S) string {
	var b strings.Builder
	for i := 0; i < len(wire) && wire[i] != 0; {
		n := int(wire[i])
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		for j := i + 1; j <= i+n && j < len(wire); j++ {
			switch c := wire[j]; {
			case c == '.' || c == '\\':
				b.WriteByte('\\')
				b.WriteByte(c)
			case c <= ' ' || c > '~':
				b.WriteString(`\` + strconv.Itoa(1000 + int(c))[1:])
			default:
				b.WriteByte(c)
			}
		}
		i += 1 + n
	}
	if b.Len() == 0 {
		return "."
	}
	return b.String()
}
