package spec

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// PortNumber is a port as written. Zero means that the port is omitted. Build checks the bounds.
type PortNumber int

// FromTree implements strict.Value.
func (p *PortNumber) FromTree(raw any) error {
	n, err := strict.Int(raw)
	if err != nil {
		if text, ok := raw.(string); ok && (text == allPorts || portRange.MatchString(text)) {
			return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(text) + " is more than one port",
				Hint: "write one, or leave it out: then a range keeps the port that the client asked for"}
		}
		return err
	}
	if n < 1 || n > 65535 {
		return vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf(invalidPort, n)}
	}
	*p = PortNumber(n)
	return nil
}

// PortRange is a port, or a range of ports, as written: 80, "10000-10099", or "all". Last is 0 for
// a single port. The zero value means that the port is omitted. Build checks the bounds.
type PortRange struct{ First, Last int }

// allPorts is the text for the range of all ports.
const allPorts = "all"

var portRange = regexp.MustCompile(`^\s*(\d+)\s*[-:]\s*(\d+)\s*$`)

// FromTree implements strict.Value.
func (r *PortRange) FromTree(raw any) error {
	text, isText := raw.(string)
	if text == allPorts {
		*r = PortRange{1, 65535}
		return nil
	}
	if m := portRange.FindStringSubmatch(text); m != nil {
		first, err1 := strconv.Atoi(m[1])
		last, err2 := strconv.Atoi(m[2])
		read := PortRange{first, last}
		if err1 != nil || err2 != nil {
			read = PortRange{} // too many digits
		}
		if why, hint := read.check(); why != "" {
			return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(text) + " " + why, Hint: hint}
		}
		if plain := fmt.Sprintf("%d-%d", first, last); text != plain {
			return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(text) + " is not how a range of ports is written", Hint: fmt.Sprintf("write %q", plain)}
		}
		*r = read
		return nil
	}
	var one PortNumber
	if err := one.FromTree(raw); err != nil {
		p := err.(vip.Problem)
		if isText && p.Hint == "" {
			p.Message, p.Hint = "invalid port "+strict.Quote(text), `use a number, a range such as "10000-10099", or "all"`
		}
		return p
	}
	*r = PortRange{First: int(one)}
	return nil
}

// check returns what is wrong with a range, and a hint.
func (r PortRange) check() (why, hint string) {
	switch {
	case r.First < 1 || r.First > 65535 || r.Last > 65535:
		return "reaches out of 1 to 65535", "use ports from 1 to 65535"
	case r.Last == r.First:
		return "is one port", fmt.Sprintf("write %d alone", r.First)
	case r.Last < r.First:
		return "ends before it begins", fmt.Sprintf(`write "%d-%d"`, r.Last, r.First)
	}
	return "", ""
}

// IsZero reports whether the port is omitted.
func (r PortRange) IsZero() bool { return r == PortRange{} }

// String returns "80", "10000-10099" or "all".
func (r PortRange) String() string {
	switch {
	case r.Last == 0:
		return strconv.Itoa(r.First)
	case r == PortRange{1, 65535}:
		return allPorts
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// MarshalJSON writes a number for a single port, and a string for a range.
func (r PortRange) MarshalJSON() ([]byte, error) {
	if r.Last == 0 {
		return []byte(r.String()), nil
	}
	return strconv.AppendQuote(nil, r.String()), nil
}

// MarshalTOML writes the same as MarshalJSON, which is also valid TOML.
func (r PortRange) MarshalTOML() ([]byte, error) { return r.MarshalJSON() }

// UnmarshalJSON reads what MarshalJSON writes.
func (r *PortRange) UnmarshalJSON(b []byte) error { return fromJSON(b, r) }

// NodePort is "off" (the zero value), "auto", or a number.
type NodePort struct {
	Auto   bool
	Number int
}

// FromTree implements strict.Value.
func (n *NodePort) FromTree(raw any) error {
	const use = `use "off", "auto" or a number from 1 to 65535`
	switch raw {
	case "off":
		*n = NodePort{}
		return nil
	case "auto":
		*n = NodePort{Auto: true}
		return nil
	}
	number, err := strict.Int(raw)
	if err != nil {
		hint := use
		if p := err.(vip.Problem); p.Hint != "" {
			hint = p.Hint
		}
		return vip.Problem{Code: vip.CodeInvalid, Message: "invalid node port: " + strict.Describe(raw), Hint: hint}
	}
	if number < 1 || number > 65535 {
		return vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf(invalidPort, number), Hint: use}
	}
	*n = NodePort{Number: number}
	return nil
}

// IsZero reports whether the node port is off.
func (n NodePort) IsZero() bool { return n == NodePort{} }

// MarshalJSON writes "off", "auto" or the number.
func (n NodePort) MarshalJSON() ([]byte, error) {
	switch {
	case n.Auto:
		return []byte(`"auto"`), nil
	case n.Number != 0:
		return strconv.AppendInt(nil, int64(n.Number), 10), nil
	}
	return []byte(`"off"`), nil
}

// MarshalTOML writes the same as MarshalJSON, which is also valid TOML.
func (n NodePort) MarshalTOML() ([]byte, error) { return n.MarshalJSON() }

// UnmarshalJSON reads what MarshalJSON writes.
func (n *NodePort) UnmarshalJSON(b []byte) error { return fromJSON(b, n) }

// Duration is a time span as written: "60s", "1h30m". Build checks the bounds of each use.
type Duration time.Duration

// FromTree implements strict.Value.
func (d *Duration) FromTree(raw any) error {
	const hint = `write it with a unit, in quotes: "90s", "5m", "1h30m"`
	s, ok := raw.(string)
	if !ok {
		return vip.Problem{Code: vip.CodeInvalid, Message: "wants a duration, has " + strict.Describe(raw), Hint: hint}
	}
	parsed, err := time.ParseDuration(s)
	if err != nil {
		return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(s) + " is not a duration", Hint: hint}
	}
	*d = Duration(parsed)
	return nil
}

// String returns "1m30s" for 90 s and omits zero units: "3h", not "3h0m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalText writes String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Duration) UnmarshalText(b []byte) error { return d.FromTree(string(b)) }

// fromJSON reads one JSON scalar into a Value.
func fromJSON(b []byte, into strict.Value) error {
	var raw any
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		raw = s
	} else {
		raw = json.Number(b)
	}
	return into.FromTree(raw)
}
