package proxy

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/internal/sklookup"
	"github.com/ironvip/ironvip/proxy/steer"
	"github.com/ironvip/ironvip/vip"
)

// listenProblem explains why spec's listener can't be opened.
func listenProblem(spec *vip.Frontend, err error) error {
	var known vip.Problem
	if errors.As(err, &known) {
		return known
	}
	key := spec.Key
	p := vip.Problem{Code: vip.CodeDataplane}
	var held steer.HeldError
	switch {
	case errors.As(err, &held) && held.By.Port() != key.Port:
		p.Message = fmt.Sprintf("listen on %s: an sk_lookup program of another process, such as a second agent, passes its clients to %s", key, held.By)
		p.Hint = fmt.Sprintf("see the process with: ss -l%snp sport = :%d; stop it or give it other services", key.Protocol.String()[:1], held.By.Port())
	case errors.Is(err, unix.EADDRNOTAVAIL): // not the host's
		p.Message = fmt.Sprintf("%s is not an address of this host", key.Addr)
	case errors.Is(err, unix.EADDRINUSE):
		holder := held.By
		if !holder.IsValid() {
			holder = steer.HolderOf(key)
		}
		p.Message = fmt.Sprintf("listen on %s: another process holds %s/%s", key, holder, key.Protocol)
		p.Hint = fmt.Sprintf("see who with: ss -l%snp sport = :%d; stop it or bind it to addresses of its own", key.Protocol.String()[:1], key.Port)
	case errors.Is(err, unix.EACCES):
		p.Message = fmt.Sprintf("listen on %s: ports below %s need a privilege here", key, unprivilegedStart())
		p.Hint = fmt.Sprintf("run with CAP_NET_BIND_SERVICE, or: sysctl -w net.ipv4.ip_unprivileged_port_start=%d", key.Port)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		p.Message = fmt.Sprintf("listen on %s: no file descriptor left of %d", key, openfiles.Limit())
		p.Hint = "raise LimitNOFILE in the systemd unit (ulimit -n)"
	case errors.Is(err, sklookup.ErrFull):
		p.Message = fmt.Sprintf("listen on %s: %v", key, err)
		p.Hint = `set dataplane.sk_lookup to "never", or divide the services among hosts`
	case errors.Is(err, unix.EAFNOSUPPORT):
		p.Message = fmt.Sprintf("listen on %s: this host has no %s", key, vip.FamilyOf(key.Addr))
	default:
		p.Message = fmt.Sprintf("listen on %s: %v", key, err)
	}
	return p
}

// unprivilegedStart returns net.ipv4.ip_unprivileged_port_start, which also applies to IPv6.
func unprivilegedStart() string {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil {
		return "1024"
	}
	return strings.TrimSpace(string(b))
}
