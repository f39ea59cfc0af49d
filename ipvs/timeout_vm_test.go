//go:build linux && vm

package ipvs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// expires returns when the only open connection is forgotten if it stays idle.
func (w *town) expires(t *testing.T) (d time.Duration) {
	t.Helper()
	var err error
	w.Director.Do(func() {
		err = w.ListConnections(t.Context(), everyFrontend, func(c reconcile.Connection) bool {
			if c.State == "ESTABLISHED" {
				d = c.Expires
			}
			return true
		})
	})
	must.Succeed(t, err)
	return d
}

// The kernel remembers idle connections for the longest idle_timeout. The timeout is never shortened, and one that
// another program has shortened is found.
func TestIdleTimeout(t *testing.T) {
	w := newTown(t)
	run(t, w.Director, "ipvsadm", "--set", "900", "120", "300")
	f := w.serve(t, "10.96.0.1:80", vip.TCP, 1)
	c := must.Get(w.Client.Dial("tcp", f.Key.AddrPort()))(t)
	ask := func(least time.Duration) {
		t.Helper()
		must.Get(c.Ask())(t)
		wait.Until(t, "the timeout", func() bool { d := w.expires(t); return d > least-time.Minute && d <= least }, func() any { return w.expires(t) })
	}
	ask(time.Hour)
	idle := func(d time.Duration) *vip.Frontend {
		return with(f, func(f *vip.Frontend) { f.Relay = vip.RelayOf(vip.ProxySettings{IdleTimeout: d}) })
	}
	long := idle(2 * time.Hour)
	expect.True(t, !w.Same(f, long), "a longer idle_timeout is no change")
	w.change(t, f, long)
	ask(2 * time.Hour)
	w.change(t, long, f)
	ask(2 * time.Hour)

	run(t, w.Director, "ipvsadm", "--set", "100", "0", "0")
	var damage []string
	for o, err := range w.Actual(t.Context()) {
		must.Succeed(t, err)
		damage = append(damage, o.Damage...)
	}
	expect.True(t, slices.ContainsFunc(damage, func(s string) bool {
		return strings.HasPrefix(s, "ipvs timeout idle TCP connections are forgotten after 1m40s")
	}), "%q", damage)
	run(t, w.Director, "ipvsadm", "--set", "90000", "0", "0")
	w.change(t, f, idle(3*time.Hour))
	ask(25 * time.Hour)
}
