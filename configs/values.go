package configs

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// FileMode is a file permission written in octal: "0660".
type FileMode os.FileMode

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *FileMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil || n > 0o777 {
		return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(string(text)) + " is not a file mode", Hint: `write it in octal, in quotes: "0660"`}
	}
	*m = FileMode(n)
	return nil
}

// String returns "0660".
func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// AddressRange is a prefix, written as a prefix or as a single address.
type AddressRange struct{ netip.Prefix }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *AddressRange) UnmarshalText(text []byte) (err error) {
	r.Prefix, err = spec.ParseRange(string(text))
	return err
}

// PortRange is an inclusive range of ports: "30000-32767".
type PortRange struct{ First, Last uint16 }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *PortRange) UnmarshalText(text []byte) error {
	low, high, found := strings.Cut(string(text), "-")
	first, err1 := strconv.ParseUint(strings.TrimSpace(low), 10, 16)
	last, err2 := strconv.ParseUint(strings.TrimSpace(high), 10, 16)
	if !found || err1 != nil || err2 != nil || first == 0 || first > last {
		return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(string(text)) + " is not a range of ports", Hint: `write it as "30000-32767"`}
	}
	*r = PortRange{uint16(first), uint16(last)}
	return nil
}

// String returns "30000-32767".
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Least is a number of backends, 2, or a share of them, "50%".
type Least struct{ announce.Least }

// FromTree implements strict.Value.
func (l *Least) FromTree(raw any) error {
	p := vip.Problem{Code: vip.CodeInvalid, Message: "must be a number or a share of backends", Hint: `use 1 to 10000, or "1%" to "100%"`}
	if s, ok := raw.(string); ok {
		p.Message = strict.Quote(s) + " is not a share of backends"
		digits, found := strings.CutSuffix(s, "%")
		n, err := strconv.Atoi(digits)
		if !found || err != nil || n < 1 || n > 100 {
			return p
		}
		l.Least = announce.Least{Percent: n}
		return nil
	}
	n, err := strict.Int(raw)
	if err != nil || n < 1 || n > maxLeast {
		return p
	}
	l.Least = announce.Least{Number: n}
	return nil
}

const maxLeast = 10_000
