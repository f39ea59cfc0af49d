package host

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
)

// Connection is a connection of TCP that a process of this host has.
type Connection struct{ Near, Far netip.AddrPort }

// tcpTables list the sockets of TCP of the calling thread's network namespace. Unlike sock_diag, they need no module.
var tcpTables = []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}

// States of TCP in these tables, see include/net/tcp_states.h.
const (
	stateEstablished, stateSYNSent, stateFINWait1, stateFINWait2, stateCloseWait, stateListening = 1, 2, 4, 5, 8, 10
)

// OpenedConnections returns the connections of TCP that processes of the calling thread's network namespace have opened
// and in which this host may still send or receive, except those over loopback addresses. A connection with the port of a
// listener counts as accepted. So the result may have one that was accepted by a listener that is closed, or that has its
// clients from a program of type sk_lookup. It costs O(sockets).
func OpenedConnections() ([]Connection, error) {
	var all []Connection
	listeners := map[uint16]bool{}
	for _, path := range tcpTables {
		err := eachSocket(path, func(c Connection, state byte) {
			switch {
			case state == stateListening:
				listeners[c.Near.Port()] = true
			case connected(state) && !c.Far.Addr().IsLoopback():
				all = append(all, c)
			}
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // without IPv6, there is one table
			return nil, err
		}
	}
	opened := all[:0]
	for _, c := range all {
		if !listeners[c.Near.Port()] {
			opened = append(opened, c)
		}
	}
	return opened, nil
}

// eachSocket calls each for every socket of a table.
func eachSocket(path string, each func(c Connection, state byte)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan(); lines.Scan(); { // after the heading
		c, state, ok := parseSocket(lines.Bytes())
		if !ok {
			return fmt.Errorf("%s: unknown line %q", path, lines.Text())
		}
		each(c, state)
	}
	return lines.Err()
}

func connected(state byte) bool {
	switch state {
	case stateEstablished, stateSYNSent, stateFINWait1, stateFINWait2, stateCloseWait:
		return true
	}
	return false
}

// parseSocket reads a line like "0: 0100007F:1F90 00000000:0000 0A ...": number, ends and state.
func parseSocket(line []byte) (c Connection, state byte, ok bool) {
	fields := bytes.Fields(line)
	if len(fields) < 4 {
		return c, 0, false
	}
	near, nearOK := parseEnd(fields[1])
	far, farOK := parseEnd(fields[2])
	var b [1]byte
	n, err := hex.Decode(b[:], fields[3][:min(2, len(fields[3]))])
	return Connection{near, far}, b[0], nearOK && farOK && err == nil && n == 1
}

// parseEnd reads an address in words of 32 bits, as this host's memory has them, and a port.
func parseEnd(text []byte) (end netip.AddrPort, ok bool) {
	words, port, ok := bytes.Cut(text, []byte{':'})
	var b [18]byte
	if !ok || len(words) != 8 && len(words) != 32 || len(port) != 4 {
		return end, false
	}
	n, err := hex.Decode(b[:16], words)
	if err != nil {
		return end, false
	}
	if _, err := hex.Decode(b[16:], port); err != nil {
		return end, false
	}
	for i := 0; i < n; i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, _ := netip.AddrFromSlice(b[:n])
	return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(b[16:])), true
}
