package proxy

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// wildcardOf returns the wildcard address and port ("0.0.0.0:53", "[::]:53")
// that some socket of this host has on the key's port, and whether there is
// one: the usual reason why the key is in use.
func wildcardOf(key vip.FrontendKey) (string, bool) {
	files := []string{"/proc/net/" + key.Protocol.String() + "6"}
	if key.Addr.Is4() { // an IPv6 wildcard takes in IPv4 too, unless asked not to
		files = append([]string{"/proc/net/" + key.Protocol.String()}, files...)
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			continue
		}
		addr, ok := findWildcard(file, key.Protocol, key.Port)
		file.Close()
		if ok {
			return addr, true
		}
	}
	return "", false
}

// findWildcard reads one of /proc/net/{tcp,udp}{,6}: a heading, then lines of
// "sl local_address rem_address st ...", addresses and ports in hexadecimal.
// Of TCP only sockets that listen (state 0A) count.
func findWildcard(r io.Reader, protocol vip.Protocol, port uint16) (string, bool) {
	want := fmt.Sprintf("%04X", port)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || protocol == vip.TCP && fields[3] != "0A" {
			continue
		}
		addr, p, ok := strings.Cut(fields[1], ":")
		if !ok || p != want || strings.Trim(addr, "0") != "" {
			continue
		}
		if len(addr) > 8 {
			return fmt.Sprintf("[::]:%d", port), true
		}
		return fmt.Sprintf("0.0.0.0:%d", port), true
	}
	return "", false
}
