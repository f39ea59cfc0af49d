package nft

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables/expr"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/vip"
)

// While there is no frontend, another program may change the sysctls. The first frontend sets them. The finding about the
// timeout of connection tracking ends when no service needs a longer one.
func TestSysctlsFollowTheFrontends(t *testing.T) {
	need.Root(t)
	node := netlab.New(t).Director
	p := newPlane(t, node)
	f := frontend("10.96.0.1", 80, vip.TCP, vip.Endpoint{Addr: backendAt(1), Weight: 1})
	long := f
	long.Relay = vip.RelayOf(vip.ProxySettings{IdleTimeout: 2 * time.Hour})
	timeout := host.Remembered(0)
	node.Sysctl(timeout.Key, "3600")
	reported := func() bool {
		p.Read(t)
		finding, _ := p.findings.Get("sysctl " + host.SysctlName(timeout.Key))
		return finding.Detail != "" && !finding.OK
	}
	for range 2 {
		node.Sysctl("ipv4/ip_forward", "0")
		p.Create(t, &long)
		expect.Equal(t, strings.TrimSpace(node.Run("cat", "/proc/sys/net/ipv4/ip_forward")), "1", "ip_forward with a frontend")
		expect.True(t, reported(), "a timeout that is too short isn't reported")
		p.Put(t, planetest.Update{Key: f.Key, Old: &long})
		expect.True(t, !reported(), "without the service, its timeout is reported")
	}
	p.Create(t, &long)
	expect.True(t, !p.Same(&long, &f), "a shorter idle_timeout is no change")
	p.Put(t, planetest.Update{Key: f.Key, Old: &long, New: &f})
	expect.True(t, !reported(), "the timeout of the past is reported")
}

// If something required is missing, no agent sets the sysctls, so they are no findings.
func TestCheckWithoutAModule(t *testing.T) {
	need.Root(t)
	node := netlab.New(t).Director
	all := trials
	defer func() { trials = all }()
	check := func() (names []string) {
		node.Do(func() {
			for _, f := range Check() {
				if strings.HasPrefix(f.Name, "sysctl ") {
					names = append(names, f.Name)
				}
			}
		})
		return names
	}
	expect.True(t, len(check()) > 0, "no sysctl with everything")
	trials = append(slices.Clone(all), filter.Trial{Module: "nft_absent", Rule: []expr.Any{&expr.Immediate{Register: 1 << 20, Data: []byte{1}}}})
	expect.Empty(t, check(), "without a module: sysctls")
}
