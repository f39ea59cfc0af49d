package kernel

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// ServiceID identifies a service in the table. The table doesn't contain a mark's family,
// so two services of one mark look alike.
type ServiceID struct {
	at       netip.AddrPort
	protocol vip.Protocol
	mark     uint32
}

func IDOf(s *Service) ServiceID {
	if s.Mark != 0 {
		return ServiceID{mark: s.Mark}
	}
	return ServiceID{at: s.Key.AddrPort(), protocol: s.Key.Protocol}
}

// Live are the current numbers of connections.
type Live struct{ Active, Inactive uint64 }

// ReadTable reads all services and destinations of the calling thread's network namespace, and returns the sums of each
// service's destinations. Only this file has the connections of all services; netlink has those of one service at a time.
func ReadTable() (map[ServiceID]Live, error) {
	f, err := os.Open("/proc/thread-self/net/ip_vs")
	if err != nil {
		return nil, fmt.Errorf("open the kernel's table of ipvs connections: %w", err)
	}
	defer f.Close()
	all, err := ParseTable(f)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's table of ipvs connections: %w", err)
	}
	return all, nil
}

// ParseTable reads the table's text: a heading of three lines, then one line for each
// service and one for each destination.
func ParseTable(r io.Reader) (map[ServiceID]Live, error) {
	all := map[ServiceID]Live{}
	var id ServiceID
	known := false // whether id is a known service
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		var err error
		switch {
		case n <= 3 || len(line) == 0:
		case bytes.HasPrefix(line, []byte("  -> ")):
			var o Live
			if o, err = parseDestination(line); known {
				sum := all[id]
				all[id] = Live{sum.Active + o.Active, sum.Inactive + o.Inactive}
			}
		default:
			if id, known, err = parseService(line); known {
				all[id] = Live{} // a service may appear twice if others are added meanwhile
			}
		}
		if err != nil {
			return nil, fmt.Errorf("line %d %q: %w", n, line, err)
		}
	}
	return all, lines.Err()
}

// parseService reads "TCP  0A600001:0050 wrr ", "UDP  [fd96:...:0001]:0050 sh " or
// "FWM  00000005 rr ". An unknown protocol is no error.
func parseService(line []byte) (id ServiceID, known bool, err error) {
	fields := fieldsOf(line)
	switch string(fields[0]) {
	case "TCP":
		id.protocol = vip.TCP
	case "UDP":
		id.protocol = vip.UDP
	case "SCTP":
		id.protocol = vip.SCTP
	case "FWM":
		mark, err := strconv.ParseUint(string(fields[1]), 16, 32)
		id.mark = uint32(mark)
		return id, err == nil, err
	default:
		return id, false, nil
	}
	id.at, err = parseHexAddrPort(fields[1])
	return id, err == nil, err
}

// parseHexAddrPort reads "0A600001:0050" or "[fd96:...]:0050".
func parseHexAddrPort(b []byte) (netip.AddrPort, error) {
	host, port := b, []byte(nil)
	if i := bytes.LastIndexByte(b, ':'); i >= 0 {
		host, port = b[:i], b[i+1:]
	}
	n, err := strconv.ParseUint(string(port), 16, 16)
	a, ok := parseHexAddr(host)
	if err != nil || !ok {
		return netip.AddrPort{}, netlink.ErrMalformed
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}

func parseHexAddr(b []byte) (netip.Addr, bool) {
	if n := len(b); n > 2 && b[0] == '[' && b[n-1] == ']' {
		a, err := netip.ParseAddr(string(b[1 : n-1]))
		return a, err == nil && a.Is6() && a.Zone() == ""
	}
	var a [4]byte
	if len(b) != 8 {
		return netip.Addr{}, false
	}
	_, err := hex.Decode(a[:], b)
	return netip.AddrFrom4(a), err == nil
}

// parseDestination reads the connections at the end of
// "  -> 0A010007:1F90      Masq    1      3          4         ".
func parseDestination(line []byte) (o Live, err error) {
	fields := fieldsOf(line) // arrow, address, method, weight, active, inactive
	if o.Active, err = parseCount(fields[4]); err == nil {
		o.Inactive, err = parseCount(fields[5])
	}
	return o, err
}

// parseCount reads a counter, which the kernel prints as a signed number.
func parseCount(b []byte) (uint64, error) {
	n, err := strconv.ParseInt(string(b), 10, 64)
	return uint64(max(n, 0)), err
}

// fieldsOf returns the first words of a line. Missing ones are empty.
func fieldsOf(line []byte) (fields [6][]byte) {
	n := 0
	for word := range bytes.FieldsSeq(line) {
		if n == len(fields) {
			break
		}
		fields[n] = word
		n++
	}
	return fields
}
