package proxyproto

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func header(src, dst string) Header {
	return Header{netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)}
}

// tlv returns one TLV.
func tlv(kind byte, value string) string {
	return string(binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(value)))) + value
}

// v2 returns a header of version 2 with any content after its length.
func v2(command, family byte, content string) string {
	return string(binary.BigEndian.AppendUint16(append([]byte(signature), command, family), uint16(len(content)))) + content
}

const (
	ends4   = "\xc0\x00\x02\x01\xc6\x33\x64\x02\x30\x39\x00\x50"
	someTLV = "\x04\x00\x02ab"
)

var ends6 = string(header("[2001:db8::1]:12345", "[2001:db8::2]:80").Append(nil, V2)[fixed:])

// The wire format, by the specification's text.
func TestAppend(t *testing.T) {
	for _, test := range []struct {
		h      Header
		v1, v2 string
	}{
		{header("192.0.2.1:12345", "198.51.100.2:80"), "PROXY TCP4 192.0.2.1 198.51.100.2 12345 80\r\n",
			"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + ends4},
		{header("[2001:db8::1]:65535", "[2001:db8::2]:0"), "PROXY TCP6 2001:db8::1 2001:db8::2 65535 0\r\n",
			"\r\n\r\n\x00\r\nQUIT\n\x21\x21\x00\x24" + "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
				"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\xff\xff\x00\x00"},
		{header("192.0.2.1:1", "[2001:db8::2]:2"), "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2\r\n", ""},
		{header("[::ffff:192.0.2.1]:1", "198.51.100.2:2"), "PROXY TCP4 192.0.2.1 198.51.100.2 1 2\r\n", ""},
		{header("[fe80::1%eth0]:1", "[fe80::2]:2"), "PROXY TCP6 fe80::1 fe80::2 1 2\r\n", ""},
	} {
		expect.Equal(t, string(test.h.Append([]byte("x"), V1)), "x"+test.v1, "%v in version 1", test.h)
		if got := string(test.h.Append([]byte("x"), V2)); test.v2 != "" && got != "x"+test.v2 {
			t.Errorf("%v in version 2: %q", test.h, got)
		}
	}
	longest := header("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe]:65535")
	for v, most := range map[Version]int{V1: 104, V2: 52} {
		b := make([]byte, 0, MaxV1)
		if n := testing.AllocsPerRun(10, func() { b = longest.Append(b[:0], v) }); n > 0 && v == V1 {
			t.Errorf("version %d: %v allocations", v, n)
		}
		expect.Equal(t, len(b), most, "the longest header of version %d has bytes", v)
	}
}

func TestParse(t *testing.T) {
	ipv4, ipv6 := header("192.0.2.1:12345", "198.51.100.2:80"), header("[2001:db8::1]:12345", "[2001:db8::2]:80")
	for name, test := range map[string]struct {
		text string
		want Header
	}{
		"v1, IPv4":                      {"PROXY TCP4 192.0.2.1 198.51.100.2 12345 80\r\n", ipv4},
		"v1, IPv6":                      {"PROXY TCP6 2001:db8::1 2001:db8::2 12345 80\r\n", ipv6},
		"v1, IPv6 in full":              {"PROXY TCP6 2001:0DB8:0:0:0:0:0:1 2001:db8::2 12345 80\r\n", ipv6},
		"v1, mapped":                    {"PROXY TCP6 ::ffff:192.0.2.1 ::ffff:198.51.100.2 12345 80\r\n", ipv4},
		"v1, unknown":                   {"PROXY UNKNOWN\r\n", Header{}},
		"v1, unknown with text":         {"PROXY UNKNOWN ffff:f...f:ffff what ever\r\n", Header{}},
		"v1, longest":                   {"PROXY UNKNOWN " + strings.Repeat("x", MaxV1-16) + "\r\n", Header{}},
		"v2, IPv4":                      {v2(0x21, 0x11, ends4), ipv4},
		"v2, IPv4 of a datagram":        {v2(0x21, 0x12, ends4), ipv4},
		"v2, IPv6":                      {v2(0x21, 0x21, ends6), ipv6},
		"v2, mapped":                    {string(header("192.0.2.1:1", "[2001:db8::2]:2").Append(nil, V2)), header("192.0.2.1:1", "[2001:db8::2]:2")},
		"v2, TLVs":                      {v2(0x21, 0x11, ends4+someTLV+tlv(0xea, "\x01vpce")), ipv4},
		"v2, empty TLV":                 {v2(0x21, 0x21, ends6+tlv(0x04, "")), ipv6},
		"v2, a TLV that is cut off":     {v2(0x21, 0x11, ends4+"\x04\x00\x03ab"), ipv4},
		"v2, LOCAL":                     {v2(0x20, 0x00, ""), Header{}},
		"v2, LOCAL with addresses":      {v2(0x20, 0x11, ends4), Header{}},
		"v2, LOCAL with anything":       {v2(0x20, 0x77, "\x03\x00\x04...."), Header{}},
		"v2, UNSPEC":                    {v2(0x21, 0x00, ""), Header{}},
		"v2, UNSPEC with anything":      {v2(0x21, 0x00, "\xff"), Header{}},
		"v2, UNIX":                      {v2(0x21, 0x31, strings.Repeat("\x00", 216)), Header{}},
		"v2, largest":                   {v2(0x21, 0x11, ends4+tlv(0x04, strings.Repeat("x", MaxSize-fixed-12-3))), ipv4},
		"v2, LOCAL of the largest size": {v2(0x20, 0x00, strings.Repeat("x", MaxSize-fixed)), Header{}},
	} {
		for _, rest := range []string{"", "GET / HTTP/1.1\r\n", "PROXY UNKNOWN\r\n", signature} {
			got, n, err := Parse([]byte(test.text + rest))
			if err != nil || n != len(test.text) || got != test.want {
				t.Errorf("%s: %v, %d bytes of %d, %v; want %v", name, got, n, len(test.text), err, test.want)
			}
		}
		for n := range len(test.text) {
			if _, _, err := Parse([]byte(test.text[:n])); !errors.Is(err, ErrIncomplete) {
				t.Errorf("%s, %d of %d bytes: %v", name, n, len(test.text), err)
			}
		}
	}
}

func TestParseErrors(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want error
	}{
		"no header":             {"GET / HTTP/1.1\r\n", ErrMalformed},
		"TLS":                   {"\x16\x03\x01", ErrMalformed},
		"lower case":            {"p", ErrMalformed},
		"no space":              {"PROXYTCP4", ErrMalformed},
		"v1, protocol":          {"PROXY TCP5 192.0.2.1 198.51.100.2 1 2\r\n", ErrMalformed},
		"v1, families mixed":    {"PROXY TCP4 192.0.2.1 2001:db8::2 1 2\r\n", ErrMalformed},
		"v1, family":            {"PROXY TCP6 192.0.2.1 198.51.100.2 1 2\r\n", ErrMalformed},
		"v1, zone":              {"PROXY TCP6 fe80::1%eth0 fe80::2 1 2\r\n", ErrMalformed},
		"v1, name":              {"PROXY TCP4 localhost 198.51.100.2 1 2\r\n", ErrMalformed},
		"v1, leading zero":      {"PROXY TCP4 192.0.2.01 198.51.100.2 1 2\r\n", ErrMalformed},
		"v1, port too large":    {"PROXY TCP4 192.0.2.1 198.51.100.2 65536 2\r\n", ErrMalformed},
		"v1, port with zero":    {"PROXY TCP4 192.0.2.1 198.51.100.2 01 2\r\n", ErrMalformed},
		"v1, port with sign":    {"PROXY TCP4 192.0.2.1 198.51.100.2 +1 2\r\n", ErrMalformed},
		"v1, no ports":          {"PROXY TCP4 192.0.2.1 198.51.100.2\r\n", ErrMalformed},
		"v1, two spaces":        {"PROXY TCP4  192.0.2.1 198.51.100.2 1 2\r\n", ErrMalformed},
		"v1, one word more":     {"PROXY TCP4 192.0.2.1 198.51.100.2 1 2 3\r\n", ErrMalformed},
		"v1, space at the end":  {"PROXY TCP4 192.0.2.1 198.51.100.2 1 2 \r\n", ErrMalformed},
		"v1, no CR":             {"PROXY TCP4 192.0.2.1 198.51.100.2 1 2\n", ErrMalformed},
		"v1, nothing":           {"PROXY \r\n", ErrMalformed},
		"v1, too long":          {"PROXY UNKNOWN " + strings.Repeat("x", MaxV1), ErrTooLong},
		"v1, one byte too long": {"PROXY UNKNOWN " + strings.Repeat("x", MaxV1-15) + "\r\n", ErrTooLong},
		"v2, version 1":         {signature + "\x11", ErrMalformed},
		"v2, command":           {signature + "\x22", ErrMalformed},
		"v2, transport":         {v2(0x21, 0x13, ends4), ErrMalformed},
		"v2, family":            {v2(0x21, 0x41, ends4), ErrMalformed},
		"v2, no transport":      {v2(0x21, 0x10, ends4), ErrMalformed},
		"v2, short":             {v2(0x21, 0x11, ends4[1:]), ErrMalformed},
		"v2, IPv6 short":        {v2(0x21, 0x21, ends4), ErrMalformed},
		"v2, too large":         {v2(0x21, 0x11, strings.Repeat("x", MaxSize-fixed+1))[:fixed], ErrTooLong},
	} {
		if h, n, err := Parse([]byte(test.text)); !errors.Is(err, test.want) || n != 0 || h != (Header{}) {
			t.Errorf("%s: %v, %d bytes, %v; want %v", name, h, n, err, test.want)
		}
	}
}

// FuzzParse checks the parser with any bytes.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"PROXY TCP4 192.0.2.1 198.51.100.2 12345 80\r\nGET", "PROXY UNKNOWN\r\n", "PROXY TCP6 ::1 ::ffff:1.2.3.4 0 65535\r\n",
		v2(0x21, 0x11, ends4+someTLV), v2(0x21, 0x21, ends6), v2(0x20, 0, "")} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := Parse(b)
		if err != nil {
			if n != 0 || h != (Header{}) {
				t.Fatalf("%v and %d bytes with the error %v", h, n, err)
			}
			if errors.Is(err, ErrIncomplete) && len(b) >= MaxSize {
				t.Fatalf("incomplete after %d bytes", len(b))
			}
			return
		}
		if n > len(b) || n > MaxSize || b[0] == 'P' && n > MaxV1 {
			t.Fatalf("%d bytes of %d", n, len(b))
		}
		// The bytes after the header make no difference, and one byte less is not enough.
		if again, size, err := Parse(b[:n:n]); err != nil || size != n || again != h {
			t.Fatalf("alone: %v, %d bytes, %v", again, size, err)
		}
		if _, _, err := Parse(b[:n-1]); !errors.Is(err, ErrIncomplete) {
			t.Fatalf("without its last byte: %v", err)
		}
		for v, most := range map[Version]int{V1: MaxV1, V2: 52} {
			text := h.Append(nil, v)
			if again, _, err := Parse(text); h.Known() && (err != nil || again != h || len(text) > most) {
				t.Fatalf("version %d: %v becomes %v, %d bytes, %v", v, h, again, len(text), err)
			}
		}
	})
}
