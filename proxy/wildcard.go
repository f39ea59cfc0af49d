package proxy

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// wildcards has the ports that sockets of this host hold on 0.0.0.0 and [::], the usual reason why
// a port is in use. It serves one Apply: the kernel's lists are as long as the host has sockets, so
// each is read at most once, and only if a frontend can't listen. The zero value is ready.
type wildcards struct {
	open  func(name string) (io.ReadCloser, error) // for tests; nil is os.Open
	lists map[string]map[uint16]struct{}           // by file
}

// of returns the wildcard address and port ("0.0.0.0:53", "[::]:53") of a socket on the key's port,
// and whether there is one.
func (w *wildcards) of(key vip.FrontendKey) (string, bool) {
	name := "/proc/net/" + key.Protocol.String()
	if key.Addr.Is4() && w.has(name, key) {
		return fmt.Sprintf("0.0.0.0:%d", key.Port), true
	}
	if w.has(name+"6", key) { // by default, it accepts IPv4, too
		return fmt.Sprintf("[::]:%d", key.Port), true
	}
	return "", false
}

func (w *wildcards) has(name string, key vip.FrontendKey) bool {
	ports, known := w.lists[name]
	if !known {
		ports = w.read(name, key.Protocol)
		if w.lists == nil {
			w.lists = make(map[string]map[uint16]struct{})
		}
		w.lists[name] = ports
	}
	_, held := ports[key.Port]
	return held
}

// read returns the ports in a file, or none if it can't be read, because the result only improves a
// message.
func (w *wildcards) read(name string, protocol vip.Protocol) map[uint16]struct{} {
	open := w.open
	if open == nil {
		open = func(name string) (io.ReadCloser, error) { return os.Open(name) }
	}
	file, err := open(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	return wildcardPorts(file, protocol)
}

// wildcardPorts reads one of /proc/net/{tcp,udp}{,6}: a heading, then lines of "sl local_address
// rem_address st ...", with addresses and ports in hexadecimal. For TCP, only listening sockets
// (state 0A) count. The kernel lists them before the connections, which can be many, so the first
// connection ends the read.
func wildcardPorts(r io.Reader, protocol vip.Protocol) map[uint16]struct{} {
	const listens, connected = "0A", "01"
	ports := make(map[uint16]struct{})
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 {
			continue
		}
		if protocol == vip.TCP && fields[3] != listens {
			if fields[3] == connected {
				break
			}
			continue
		}
		addr, digits, ok := strings.Cut(fields[1], ":")
		if !ok || strings.Trim(addr, "0") != "" {
			continue
		}
		if port, err := strconv.ParseUint(digits, 16, 16); err == nil {
			ports[uint16(port)] = struct{}{}
		}
	}
	return ports
}
