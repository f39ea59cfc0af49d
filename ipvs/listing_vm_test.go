//go:build linux && vm

package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// listed returns the connections as "tcp CLIENT VIP BACKEND STATE". Connections of affinity have
// the kernel's port 0.
func (w *town) listed(t *testing.T) (out []string) {
	t.Helper()
	var err error
	w.Director.Do(func() {
		err = w.ListConnections(t.Context(), everyFrontend, func(c reconcile.Connection) bool {
			if c.Expires < 0 || c.Expires > 24*time.Hour {
				t.Errorf("%+v expires in %s", c, c.Expires)
			}
			out = append(out, fmt.Sprintf("%s %s %s %s %s", c.Frontend.Protocol, c.Client, c.Frontend.AddrPort(), c.Backend, c.State))
			return true
		})
	})
	must.Succeed(t, err)
	slices.Sort(out)
	return out
}

// ipvsadmConns reads ipvsadm -Lnc: "TCP 14:58 ESTABLISHED 10.99.0.2:40000 10.96.0.1:80 10.77.1.2:80".
func (w *town) ipvsadmConns(t *testing.T) (out []string) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(run(t, w.Director, "ipvsadm", "-Lnc")), "\n") {
		if f := strings.Fields(line); i >= 2 && len(f) >= 6 {
			state := f[2]
			if netip.MustParseAddrPort(f[3]).Port() == 0 {
				state = reconcile.StateAffinity
			}
			out = append(out, fmt.Sprintf("%s %s %s %s %s", strings.ToLower(f[0]), f[3], f[4], f[5], state))
		}
	}
	slices.Sort(out)
	return out
}

// After real traffic over both protocols and families, the list of connections equals ipvsadm's,
// with open connections, closed ones that wait for their timers, and affinity.
func TestConnectionsAreThoseOfIpvsadm(t *testing.T) {
	w := newTown(t)
	var all []*vip.Frontend
	for _, p := range []vip.Protocol{vip.TCP, vip.UDP} {
		for _, at := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
			all = append(all, w.serve(t, at, p, 2))
		}
	}
	w.change(t, all[0], with(all[0], func(f *vip.Frontend) { f.Affinity = time.Hour }))
	flows := map[string]bool{} // a map, because the kernel may give a client the port of one before
	dial := func(f *vip.Frontend) *netlab.Conn {
		c := must.Get(w.Client.Dial(f.Key.Protocol.String(), f.Key.AddrPort()))(t)
		must.Get(c.Ask())(t)
		flows[fmt.Sprint(f.Key.Protocol, " ", c.LocalAddr(), " ")] = true
		return c
	}
	for _, f := range all {
		for range 3 {
			dial(f).Close()
		}
	}
	dial(all[1])
	wait.For(t, "listed as by ipvsadm", func() error { // a state may change between the two
		got, want := w.listed(t), w.ipvsadmConns(t)
		if !slices.Equal(got, want) {
			return fmt.Errorf("\n%s\nipvsadm:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		for flow := range flows {
			if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, flow) }) {
				return fmt.Errorf("not %sin %d connections:\n%s", flow, len(got), strings.Join(got, "\n"))
			}
		}
		if len(got) != len(flows)+1 {
			return fmt.Errorf("%d connections, not %d and that of affinity:\n%s", len(got), len(flows), strings.Join(got, "\n"))
		}
		return nil
	})
	for _, state := range []string{"ESTABLISHED", "UDP", reconcile.StateAffinity} {
		if !slices.ContainsFunc(w.listed(t), func(s string) bool { return strings.HasSuffix(s, " "+state) }) {
			t.Errorf("none is %s:\n%s", state, strings.Join(w.listed(t), "\n"))
		}
	}
}
