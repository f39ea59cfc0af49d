//go:build vm

package program

import (
	"fmt"
	"net/netip"
	"path/filepath"
)

const failoverRate = 20 // new connections per second: the machine is emulated

// others are the balancers that BenchmarkFailover compares with.
var others = map[string]func(*failover) string{"keepalived": (*failover).keepalived}

// keepalived starts keepalived's checker with the same times as ironvip's defaults, and returns the
// address of the service. Its own default is one check a minute.
func (f *failover) keepalived() string {
	at := netip.MustParseAddr(f.host.pool + ".1")
	f.lab.Director.AddAddr("lo", netip.PrefixFrom(at, 32))
	f.lab.Director.Sysctl("ipv4/vs/conntrack", "1")
	text := fmt.Sprintf(`virtual_server %s 80 {
  delay_loop 2
  lb_algo rr
  lb_kind NAT
  protocol TCP
`, at)
	for _, n := range f.lab.Backends {
		text += fmt.Sprintf(`  real_server %s %d {
    weight 1
    HTTP_GET {
      url {
        path /
        status_code 200
      }
      connect_timeout 1
      retry 2
      delay_before_retry 0.5
    }
  }
`, n.Addr4, webPort)
	}
	dir := f.b.TempDir()
	f.run(f.lab.Director, "keepalived", "--dont-fork", "--check", "--log-console", "--use-file", f.file("keepalived.conf", text+"}\n"),
		"--pid", filepath.Join(dir, "main.pid"), "--checkers_pid", filepath.Join(dir, "checkers.pid"))
	return netip.AddrPortFrom(at, 80).String()
}
