package kernel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// Entry is one line of the list of connections.
type Entry struct {
	// To is the address and port that the client used. For the affinity of a service by
	// mark, it is zero, and Mark is the mark.
	To       netip.AddrPort
	Mark     uint32
	Protocol vip.Protocol   // not set with Mark
	Client   netip.AddrPort // port 0: the affinity of a client
	Backend  netip.AddrPort
	State    string
	Expires  time.Duration
}

// EachConn calls yield for each connection of the calling thread's network namespace until yield returns false. Netlink
// doesn't have them. It keeps one line in memory. The kernel walks its hash table from the start for each page of the list,
// so a list of n connections costs O(n²/50) steps.
func EachConn(ctx context.Context, yield func(*Entry) bool) error {
	f, err := os.Open("/proc/thread-self/net/ip_vs_conn")
	if err != nil {
		return fmt.Errorf("open the kernel's list of ipvs connections: %w", err)
	}
	defer f.Close()
	if err := ParseConns(ctx, f, yield); err != nil {
		return fmt.Errorf("read the kernel's list of ipvs connections: %w", err)
	}
	return nil
}

// ParseConns reads the list's text: a heading, then one line for each connection.
func ParseConns(ctx context.Context, r io.Reader, yield func(*Entry) bool) error {
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		if n == 1 || len(line) == 0 {
			continue
		}
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		e, known, err := parseEntry(line)
		if err != nil {
			return fmt.Errorf("line %d %q: %w", n, line, err)
		}
		if known && !yield(&e) {
			return nil
		}
	}
	return lines.Err()
}

// parseEntry reads
// "TCP 0A600102 D2F0 0A600001 0050 0A010007 1F90 ESTABLISHED     898". IPv6 addresses are
// "fd96:0000:...:0001". An unknown protocol is no error.
func parseEntry(line []byte) (e Entry, known bool, err error) {
	var f [9][]byte // protocol, client, port, address, port, backend, port, state, seconds
	n := 0
	for word := range bytes.FieldsSeq(line) {
		if n == len(f) {
			break // the data of a persistence engine
		}
		f[n] = word
		n++
	}
	switch string(f[0]) {
	case "TCP":
		e.Protocol = vip.TCP
	case "UDP":
		e.Protocol = vip.UDP
	case "SCTP":
		e.Protocol = vip.SCTP
	case "IP": // of a service by mark
	default:
		return e, false, nil
	}
	for i, p := range []*netip.AddrPort{&e.Client, &e.To, &e.Backend} {
		if *p, err = parseEndpoint(f[1+2*i], f[2+2*i]); err != nil {
			return e, false, err
		}
	}
	if e.Protocol == 0 {
		first := e.To.Addr().AsSlice()[:4]
		e.To, e.Mark = netip.AddrPort{}, binary.BigEndian.Uint32(first)
	}
	e.State = string(f[7])
	seconds, err := strconv.ParseUint(string(f[8]), 10, 32)
	e.Expires = time.Duration(seconds) * time.Second
	return e, true, err
}

func parseEndpoint(addr, port []byte) (netip.AddrPort, error) {
	a, ok := parseHexAddr(addr)
	if !ok {
		var err error
		if a, err = netip.ParseAddr(string(addr)); err != nil || !a.Is6() || a.Zone() != "" {
			return netip.AddrPort{}, netlink.ErrMalformed
		}
	}
	p, err := strconv.ParseUint(string(port), 16, 16)
	if err != nil {
		return netip.AddrPort{}, netlink.ErrMalformed
	}
	return netip.AddrPortFrom(a, uint16(p)), nil
}
