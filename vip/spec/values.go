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

// PortNumber is a port as written. Zero is a port left out; Build checks the
// bounds. A range ("10000-10099") is refused as unsupported.
type PortNumber int

var portRange = regexp.MustCompile(`^\s*\d+\s*[-:]\s*\d+\s*$`)

// FromTree implements strict.Value.
func (p *PortNumber) FromTree(raw any) error {
	if s, ok := raw.(string); ok && portRange.MatchString(s) {
		p := vip.Unsupported("this version", "", "port ranges")
		p.Hint = "write a port of its own for each"
		return p
	}
	n, err := strict.Int(raw)
	if err != nil {
		return err
	}
	if n < 1 || n > 65535 {
		return vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf("%d is no port", n), Hint: "use 1 to 65535"}
	}
	*p = PortNumber(n)
	return nil
}

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
		return vip.Problem{Code: vip.CodeInvalid, Message: strict.Describe(raw) + " is no node port", Hint: hint}
	}
	if number < 1 || number > 65535 {
		return vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf("%d is no port", number), Hint: use}
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

// MarshalTOML writes what MarshalJSON does, which TOML reads alike.
func (n NodePort) MarshalTOML() ([]byte, error) { return n.MarshalJSON() }

// UnmarshalJSON reads what MarshalJSON writes.
func (n *NodePort) UnmarshalJSON(b []byte) error { return fromJSON(b, n) }

// Duration is a time span as written: "60s", "1h30m". Build checks the bounds
// of each use.
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

// String returns "90s" as "1m30s" and leaves out what is zero: "3h", not "3h0m0s".
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
