//go:build system && !vm

package program

import (
	"fmt"
	"net/netip"
)

const failoverRate = 400 // new connections per second

// others are the balancers that BenchmarkFailover compares with.
var others = map[string]func(*failover) string{"haproxy": (*failover).haproxy}

// haproxy starts HAProxy with its default times, and returns the address of the service.
func (f *failover) haproxy() string {
	at := netip.AddrPortFrom(f.lab.Director.Addr4, 8000).String()
	var servers string
	for _, n := range f.lab.Backends {
		servers += fmt.Sprintf("  server %s %s:%d check\n", n.Name, n.Addr4, webPort)
	}
	check := ""
	if f.check == "http" {
		check = "option httpchk GET /"
	}
	f.run(f.lab.Director, "haproxy", "-db", "-q", "-f", f.file("haproxy.cfg", fmt.Sprintf(`defaults
  mode tcp
  timeout connect 3s
  timeout client 1h
  timeout server 1h
  option redispatch
listen web
  bind %s
  balance roundrobin
  %s
%s`, at, check, servers)))
	return at
}
