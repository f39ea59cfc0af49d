//go:build linux && vm

package ipvs

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/vip"
)

// loop is a Reconciler on a plane.
type loop struct {
	*planetest.Loop
	t *testing.T
	p *planeIn
}

func newLoop(t *testing.T, p *planeIn, resync time.Duration) *loop {
	return &loop{planetest.NewLoop(t, p, resync), t, p}
}

// waitApplied waits until all frontends are applied, and checks the kernel with other programs.
func (l *loop) waitApplied() {
	l.t.Helper()
	l.Wait(l.Unapplied)
	l.witness(l.All()...)
}

// witness checks the kernel with other programs. It waits for the end of a change, because the
// kernel has only a part of it before.
func (l *loop) witness(want ...vip.Frontend) {
	l.t.Helper()
	l.p.Applying.Lock()
	defer l.p.Applying.Unlock()
	witness(l.t, l.p.Node, want)
}

// hooked is a socket that calls a function before one write.
type hooked struct {
	netlink.Socket
	before atomic.Pointer[func()]
}

// hook wraps a socket in a hooked one. Call it before anything uses the socket.
func hook(m *netlink.Socket) *hooked {
	h := &hooked{Socket: *m}
	*m = h
	return h
}

func (h *hooked) Write(ctx context.Context, n int, put func(b []byte, i int) []byte, done func(i int, err error)) error {
	if f := h.before.Swap(nil); f != nil && n > 0 {
		(*f)()
	}
	return h.Socket.Write(ctx, n, put, done)
}

// aFew returns frontends of all kinds: with shared addresses, of both families, a node port, one
// without a usable backend.
func aFew() []*vip.Frontend {
	return []*vip.Frontend{
		frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:80", "10.77.2.2:80")...),
		frontend("10.96.0.1:53", vip.UDP, addrs("10.77.1.2:53")...),
		frontend("10.96.0.2:80", vip.TCP),
		frontend("[fd96::1]:80", vip.TCP, addrs("[fd77:1::2]:80")...),
	}
}

// Another program's change between the stages of a change is repaired.
func TestForeignHandHalfWay(t *testing.T) {
	lab := netlab.New(t) // each agent finds the state of the last one
	var all []vip.Frontend
	for name, c := range map[string]struct {
		route bool // before addresses are added; otherwise before services are programmed
		do    []string
	}{
		"table deleted":           {false, []string{"nft delete table inet ironvip"}},
		"table deleted late":      {true, []string{"nft delete table inet ironvip"}},
		"set emptied":             {true, []string{"nft flush set inet ironvip vips4"}},
		"device deleted":          {false, []string{"ip link del ironvip0"}},
		"device deleted late":     {true, []string{"ip link del ironvip0"}},
		"device down":             {true, []string{"ip link set ironvip0 down"}},
		"services cleared":        {false, []string{"ipvsadm -C"}},
		"services cleared late":   {true, []string{"ipvsadm -C"}},
		"everything":              {true, []string{"ipvsadm -C", "nft flush ruleset", "ip link del ironvip0"}},
		"loopback down":           {false, []string{"ip link set lo down"}},
		"device deleted and made": {true, []string{"ip link del ironvip0", "ip link add ironvip0 type dummy"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, lab.Director)
			typ := p.kernel.Family
			if c.route {
				typ = unix.RTM_NEWROUTE
			}
			var armed atomic.Bool
			p.Faults = func(b []byte, write bool, send func([]byte) error) error {
				if h, _, _, err := netlink.NextMessage(b); write && err == nil && h.Type == typ && armed.CompareAndSwap(true, false) {
					for _, cmd := range c.do {
						run(t, lab.Director, strings.Fields(cmd)...)
					}
				}
				return send(b)
			}
			few := aFew()
			l := newLoop(t, p, 200*time.Millisecond)
			l.Set(few[0], few[2])
			l.Wait(l.Unapplied)
			armed.Store(true)
			l.Set(with(few[0], func(f *vip.Frontend) { f.Backends = f.Backends[:1] }), few[1], few[3])
			l.Wait(l.Unapplied)
			expect.False(t, armed.Load(), "it never came to pass")
			all = l.All()
			l.Stop()
			run(t, lab.Director, "ip", "link", "set", "lo", "up")
		})
	}
	witness(t, lab.Director, all)
}
