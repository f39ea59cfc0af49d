//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// With -reach the guest reaches these TCP ports of the host's 127.0.0.1, as the same ports of
// reachAddr. QEMU's user network carries the packets. With restrict=on nothing else of the host or
// beyond is reachable, and nothing outside reaches the guest. For each connection QEMU starts a
// command, which is this binary as a relay. A chardev, QEMU's other way to forward, is one
// connection for all.
const (
	guestAddr   = "10.0.2.15"
	guestMask   = "255.255.255.0"
	guestDevice = "eth0"
	reachAddr   = "10.0.2.100"
	relayFlag   = "-relay" // with a port; used by QEMU
)

// reachModules are loaded in a guest that has a network device.
var reachModules = []string{"virtio_pci", "virtio_net"}

// parseReach reads ports: "20001,20002".
func parseReach(s string) ([]uint16, error) {
	var ports []uint16
	seen := map[uint64]bool{}
	for _, word := range list(s) {
		port, err := strconv.ParseUint(word, 10, 16)
		if err != nil || port == 0 || seen[port] {
			return nil, fmt.Errorf("-reach %q: want different ports of the host's 127.0.0.1, from 1 to 65535: 20001,20002", s)
		}
		seen[port] = true
		ports = append(ports, uint16(port))
	}
	return ports, nil
}

// reachArgs returns QEMU's arguments, where self is the path of this binary. Without ports it
// returns none, and the guest has no device.
func reachArgs(ports []uint16, self string) []string {
	if len(ports) == 0 {
		return nil
	}
	netdev := "user,id=host,restrict=on,ipv6=off,net=10.0.2.0/24"
	for _, port := range ports {
		// QEMU splits the command like a shell. A comma within an option is doubled.
		command := fmt.Sprintf("'%s' %s %d", strings.ReplaceAll(self, "'", `'\''`), relayFlag, port)
		netdev += fmt.Sprintf(",guestfwd=tcp:%s:%d-cmd:%s", reachAddr, port, strings.ReplaceAll(command, ",", ",,"))
	}
	return []string{"-netdev", netdev, "-device", "virtio-net-pci,netdev=host,romfile="}
}

// relay connects its stdin and stdout, which are one connection of the guest's, with a port of the
// host, and returns the exit status. The end of either side ends both, so that no relay outlives
// QEMU, whatever the host's server does. It prints nothing, because stderr is the connection, too.
func relay(port string) int {
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", port), 10*time.Second)
	if err != nil {
		return exitRunner
	}
	defer c.Close()
	ended := make(chan struct{}, 2)
	copyAll := func(w io.Writer, r io.Reader) {
		io.Copy(w, r) // an error means that a side has ended
		ended <- struct{}{}
	}
	go copyAll(c, os.Stdin)
	go copyAll(os.Stdout, c)
	<-ended
	return 0
}

// networkUp sets the address of the guest's device.
func networkUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, set := range []struct {
		request uint
		value   string
	}{{unix.SIOCSIFADDR, guestAddr}, {unix.SIOCSIFNETMASK, guestMask}} {
		req, err := unix.NewIfreq(guestDevice)
		if err != nil {
			return err
		}
		if err := req.SetInet4Addr(net.ParseIP(set.value).To4()); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, set.request, req); err != nil {
			return fmt.Errorf("address %s: %w", set.value, err)
		}
	}
	return linkUp(fd, guestDevice)
}
