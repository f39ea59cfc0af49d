//go:build linux && vm

package ipvs

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/netlink/netlinktest"
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
			lab := netlab.New(t)
			p := newPlane(t, lab.Director)
			services, addresses := hook(&p.kernel.Socket), hook(&p.device.Conn)
			all := aFew()
			l := newLoop(t, p, 200*time.Millisecond)
			l.Set(all[0], all[2])
			l.waitApplied()
			now := services
			if c.route {
				now = addresses
			}
			do := func() {
				for _, cmd := range c.do {
					run(t, lab.Director, strings.Fields(cmd)...)
				}
			}
			now.before.Store(&do)
			l.Set(with(all[0], func(f *vip.Frontend) { f.Backends = f.Backends[:1] }), all[1], all[3])
			l.waitApplied()
			if now.before.Load() != nil {
				t.Error("it never came to pass")
			}
		})
	}
}

// The process loses CAP_NET_ADMIN in the middle of a change, and gets it back.
func TestRightsLostHalfWay(t *testing.T) {
	for name, route := range map[string]bool{"before services": false, "before addresses": true} {
		t.Run(name, func(t *testing.T) {
			lab := netlab.New(t)
			p := newPlane(t, lab.Director)
			services, addresses := hook(&p.kernel.Socket), hook(&p.device.Conn)
			all := aFew()
			p.Create(t, all[0])
			at := services
			if route {
				at = addresses
			}
			lose := func() { setNetAdmin(t, false) }
			at.before.Store(&lose)
			batch := []updateOf{{Key: all[0].Key, Old: all[0]}, {Key: all[1].Key, New: all[1]}, {Key: all[3].Key, New: all[3]}}
			var err error
			lab.Director.Do(func() {
				defer setNetAdmin(t, true)
				err = p.Target.Apply(t.Context(), batch)
			})
			if err == nil && batch[0].Err == nil && batch[1].Err == nil && batch[2].Err == nil {
				t.Error("nothing is said to be missing")
			}
			for i := range batch {
				if batch[i].Err != nil && !strings.Contains(batch[i].Err.Error(), "not permitted") {
					t.Errorf("%s: %v", batch[i].Key, batch[i].Err)
				}
				batch[i].Repair = true
			}
			p.Put(t, batch...)
			p.Wants(t, all[1], all[3])
			witness(t, lab.Director, []vip.Frontend{*all[1], *all[3]})
		})
	}
}

// setNetAdmin grants CAP_NET_ADMIN to the calling thread or revokes it.
func setNetAdmin(t *testing.T, has bool) {
	t.Helper()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&h, &data[0]); err != nil {
		t.Fatal(err)
	}
	if data[0].Effective &^= 1 << unix.CAP_NET_ADMIN; has {
		data[0].Effective |= 1 << unix.CAP_NET_ADMIN
	}
	if err := unix.Capset(&h, &data[0]); err != nil {
		t.Fatal(err)
	}
}

// Answers are lost because of a tiny receive buffer, or never arrive. The outcome of each change
// is read back, and the rest is applied.
func TestAnswersLost(t *testing.T) {
	for name, deafen := range map[string]func(fd int) error{
		"tiny buffer": func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1) },
		"no answer":   netlinktest.DropAnswers,
	} {
		t.Run(name, func(t *testing.T) {
			lab := netlab.New(t)
			p := newPlane(t, lab.Director)
			old := many(8, 30)
			p.Create(t, old...)
			// Delete half of the services: the kernel answers each message about them with an
			// error.
			for _, f := range old[:4] {
				run(t, lab.Director, "ipvsadm", "-D", "-t", f.Key.AddrPort().String())
			}
			var batch []updateOf
			var want []*vip.Frontend
			for _, f := range old {
				g := with(f, func(f *vip.Frontend) {
					for i := range f.Backends {
						f.Backends[i].Weight = 7
					}
				})
				want = append(want, g)
				batch = append(batch, updateOf{Key: f.Key, Old: f, New: g})
			}
			if err := deafen(p.kernel.Socket.(*netlink.Conn).FD()); err != nil {
				t.Fatal(err)
			}
			p.Put(t, batch...)
			if p.Stats().AnswersLost == 0 {
				t.Error("no answer was lost")
			}
			p.Wants(t, want...)
			var all []vip.Frontend
			for _, f := range want {
				all = append(all, *f)
			}
			witness(t, lab.Director, all)
		})
	}
}

// In a namespace without any interface that is up, the kernel rejects backends. The error says
// so, and the next attempt succeeds because the device is up.
func TestNothingIsUp(t *testing.T) {
	onThreadThatEnds(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		p, err := New(Options{Owns: owns})
		if err != nil {
			t.Error(err)
			return
		}
		defer p.Close()
		f := frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:80")...)
		batch := []updateOf{{Key: f.Key, New: f}}
		for try := range 3 {
			if err := p.Apply(t.Context(), batch); err != nil {
				t.Error(err)
				return
			}
			if batch[0].Err == nil {
				break
			}
			problem, ok := errors.AsType[vip.Problem](batch[0].Err)
			if try > 0 || !ok || !strings.Contains(problem.Message, "10.77.1.2:80") || !strings.Contains(problem.Hint, "no interface is up") {
				t.Errorf("try %d: %+v", try, batch[0].Err)
			}
		}
		s, err := p.kernel.State(t.Context(), f.Key, 0)
		if err != nil || s == nil || len(s.Dests) != 1 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// onThreadThatEnds runs f on a thread that ends with f, so that the thread's namespace is
// deleted. The first thread of a process never ends. It would keep the namespace, whose contents
// keep the modules loaded.
func onThreadThatEnds(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThreadThatEnds(f) // another thread, because this one stays locked
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}
