package proxyproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The reasons why bytes are not a header.
var (
	// ErrIncomplete means that all bytes belong to the header, and more are needed.
	ErrIncomplete = errors.New("the header is incomplete")
	// ErrMalformed means that no continuation of the bytes is a header.
	ErrMalformed = errors.New("not a valid PROXY header")
	// ErrTooLong means that the header is larger than MaxV1 or MaxSize.
	ErrTooLong = errors.New("the header is too long")
)

const prefixV1 = "PROXY "

// Parse reads the header at the beginning of b, and returns its size. The error is, or wraps, one of
// those above. Parse looks at no byte after the header and keeps no reference to b. TLVs are skipped.
//
// The zero Header is the result of UNKNOWN in version 1; of the command LOCAL and of families other
// than IPv4 and IPv6 in version 2. Other content of these headers is ignored, as the specification
// requires.
func Parse(b []byte) (Header, int, error) {
	switch {
	case bytes.HasPrefix(b, []byte(signature)):
		return parseV2(b)
	case bytes.HasPrefix(b, []byte(prefixV1)):
		return parseV1(b)
	case strings.HasPrefix(signature, string(b)), strings.HasPrefix(prefixV1, string(b)):
		return Header{}, 0, ErrIncomplete
	}
	return Header{}, 0, fmt.Errorf("%w: it begins with %q", ErrMalformed, b[:min(len(b), len(signature))])
}

func parseV1(b []byte) (Header, int, error) {
	end := bytes.IndexByte(b[:min(len(b), MaxV1)], '\n')
	if end < 0 {
		if len(b) >= MaxV1 {
			return Header{}, 0, fmt.Errorf("%w: no end of line within %d bytes", ErrTooLong, MaxV1)
		}
		return Header{}, 0, ErrIncomplete
	}
	line, ok := bytes.CutSuffix(b[:end], []byte{'\r'})
	h, valid := parseLine(string(line[len(prefixV1):]))
	if !ok || !valid {
		return Header{}, 0, fmt.Errorf("%w: %q", ErrMalformed, b[:end+1])
	}
	return h, end + 1, nil
}

// parseLine reads a header of version 1 between "PROXY " and the line's end.
func parseLine(line string) (h Header, ok bool) {
	protocol, rest, _ := strings.Cut(line, " ")
	if protocol == "UNKNOWN" {
		return Header{}, true
	}
	words := strings.Split(rest, " ")
	if len(words) != 4 || protocol != "TCP4" && protocol != "TCP6" {
		return Header{}, false
	}
	var ends [2]netip.AddrPort
	for i := range ends {
		a, err := netip.ParseAddr(words[i])
		port, valid := parsePort(words[2+i])
		if err != nil || !valid || a.Zone() != "" || a.Is4() != (protocol == "TCP4") {
			return Header{}, false
		}
		ends[i] = netip.AddrPortFrom(a.Unmap(), port)
	}
	return Header{ends[0], ends[1]}, true
}

// parsePort reads 0 to 65535 without sign and leading zeros.
func parsePort(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && (text == "0" || text[0] != '0')
}

func parseV2(b []byte) (Header, int, error) {
	if len(b) > len(signature) {
		if c := b[len(signature)]; c != commandProxy && c != commandLocal {
			return Header{}, 0, fmt.Errorf("%w: version %d, command %d", ErrMalformed, c>>4, c&0xf)
		}
	}
	if len(b) < fixed {
		return Header{}, 0, ErrIncomplete
	}
	addresses := 0 // their size; LOCAL has no family
	if b[len(signature)] == commandProxy {
		switch family := b[len(signature)+1]; family {
		case unspec, unixStream, unixDgram:
		case inetStream, inetDgram:
			addresses = inetSize
		case inet6Stream, inet6Dgram:
			addresses = inet6Size
		default:
			return Header{}, 0, fmt.Errorf("%w: address family and protocol 0x%02x", ErrMalformed, family)
		}
	}
	n := fixed + int(binary.BigEndian.Uint16(b[fixed-2:]))
	switch {
	case n > MaxSize:
		return Header{}, 0, fmt.Errorf("%w: %d bytes, more than %d", ErrTooLong, n, MaxSize)
	case n < fixed+addresses:
		return Header{}, 0, fmt.Errorf("%w: %d bytes are too short for its addresses", ErrMalformed, n)
	case len(b) < n:
		return Header{}, 0, ErrIncomplete
	case addresses == 0:
		return Header{}, n, nil
	}
	return addressesOf(b[fixed : fixed+addresses]), n, nil
}

// addressesOf reads two addresses and two ports.
func addressesOf(b []byte) Header {
	size := (len(b) - 4) / 2
	src, _ := netip.AddrFromSlice(b[:size])
	dst, _ := netip.AddrFromSlice(b[size : 2*size])
	ports := b[2*size:]
	return Header{
		netip.AddrPortFrom(src.Unmap(), binary.BigEndian.Uint16(ports)),
		netip.AddrPortFrom(dst.Unmap(), binary.BigEndian.Uint16(ports[2:])),
	}
}
