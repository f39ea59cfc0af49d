package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// steps are the changes of a fleet's desired state, with time between them.
var steps = []func(w *world){
	func(w *world) {
		w.put(listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80", "10.1.0.2:80*2"))
		w.put(listener("10.96.0.1:53", vip.UDP, "10.1.0.1:53", "10.1.0.2:53"))
		w.put(listener("10.96.0.2:80", vip.TCP))
	},
	func(w *world) {
		w.put(listener("[fd96::1]:80", vip.TCP, "[fd01::1]:80", "[fd02::1]:80"))
		w.put(listener("192.0.2.1:30080", vip.TCP, "10.1.0.1:80"))
	},
	func(w *world) {
		w.put(listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80*3", "10.1.0.3:80", "10.9.0.1:80"))
		w.put(listener("10.96.0.1:53", vip.UDP, "10.1.0.2:53"))
		w.put(listener("10.96.0.2:80", vip.TCP, "10.9.0.1:80"))
	},
	func(w *world) {
		f := listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80*3", "10.1.0.3:80")
		f.Scheduler, f.Masquerade = vip.MaglevHash, vip.MasqueradeAlways
		w.put(f)
		g := listener("[fd96::1]:80", vip.TCP, "[fd01::1]:80*0")
		g.Affinity = time.Minute
		w.put(g)
	},
	func(w *world) {
		w.drop("10.96.0.1:53", vip.UDP)
		w.drop("10.96.0.2:80", vip.TCP)
		w.drop("192.0.2.1:30080", vip.TCP)
		w.put(listener("10.96.0.4:80", vip.TCP, "10.1.0.1:80"))
		f := listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80*3", "10.1.0.2:80", "10.1.0.3:80*0")
		f.Scheduler, f.Masquerade = vip.MaglevHash, vip.MasqueradeAlways
		w.put(f)
	},
	func(w *world) {
		f := listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80*3", "10.1.0.2:80*2", "10.1.0.3:80")
		f.Scheduler, f.Masquerade = vip.MaglevHash, vip.MasqueradeAlways
		w.put(f)
		w.drop("[fd96::1]:80", vip.TCP)
		w.put(listener("10.96.0.2:80", vip.TCP, "10.1.0.3:80"))
	},
}

func (w *world) put(f *vip.Frontend) { w.set(f.Key, f) }

func (w *world) drop(at string, p vip.Protocol) { w.set(listener(at, p).Key, nil) }

// honest returns the ways in which a call may fail without a wrong answer of the kernel.
func honest(kind string) []fault {
	lost := func(e ...error) (out []fault) {
		for _, err := range e {
			out = append(out, fault{err: err}, fault{err: err, done: true})
		}
		return out
	}
	not := func(e ...error) (out []fault) {
		for _, err := range e {
			out = append(out, fault{err: err})
		}
		return out
	}
	switch kind {
	case "ipvs send", "route send":
		return not(unix.ENOBUFS, unix.EPERM)
	case "ipvs message":
		return append(lost(netlink.ErrUnknown), not(unix.EPERM, unix.ENOMEM, unix.EINVAL, unix.EINTR, unix.EAFNOSUPPORT)...)
	case "route message":
		return append(lost(netlink.ErrUnknown), not(unix.EPERM, unix.ENOBUFS)...)
	case "ipvs query":
		return append(lost(netlink.ErrInterrupted, netlink.ErrMalformed, unix.EAGAIN), not(unix.ENOBUFS, unix.EPERM, unix.EINTR)...)
	case "route query":
		return append(lost(netlink.ErrInterrupted, netlink.ErrMalformed, unix.EAGAIN), not(unix.ENOBUFS, unix.EPERM, unix.EINTR)...)
	case "nft transaction":
		return append(lost(unix.ENOBUFS, errors.New("i/o timeout")), not(unix.EPERM, unix.EINTR, unix.EBUSY, unix.ENOMEM)...)
	case "nft read":
		return not(unix.EPERM, unix.EINTR, unix.ENOBUFS)
	case "tunnel read":
		return not(unix.EPERM, unix.EINTR)
	case "link find", "link add", "link set", "link delete", "address add", "tunnel set", "tunnel delete":
		return append(lost(unix.EAGAIN), not(unix.EPERM, unix.EINTR)...)
	case "address list":
		return not(rtnl.ErrDumpInterrupted, unix.ENOBUFS)
	case "sysctl read", "sysctl write":
		return not(unix.EPERM)
	case "conntrack sweep":
		return append(lost(unix.ENOBUFS), not(unix.EPERM)...)
	}
	panic("a call of kind " + kind)
}

// lies returns answers that are only given when somebody else was faster: no
// retry can tell, a resync does. (A service that is said to be gone is none of
// them: where it stands on an address of the host, it is not ours afterwards.)
func lies(kind string) []fault {
	switch kind {
	case "ipvs message":
		return []fault{{err: unix.EEXIST}, {err: unix.ENOENT}}
	case "ipvs query":
		return []fault{{err: unix.ENOENT}}
	case "route message":
		return []fault{{err: unix.EEXIST}, {err: unix.ENODEV}, {err: unix.EADDRNOTAVAIL}}
	case "nft transaction":
		return []fault{{err: unix.ENOENT}, {err: unix.EEXIST}}
	case "link find", "link set":
		return []fault{{err: unix.ENODEV}}
	case "link add":
		return []fault{{err: unix.EEXIST}}
	}
	return nil
}

// play runs all steps while script decides what fails. At the end nothing fails any more, and
// everything must be correct. A resync of 0 is none. Without a resync, every error must be reported
// at each step.
func play(t *testing.T, pause, resync time.Duration, script func(w *world, c call) *fault) (w *world) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		w = newWorld()
		if resync > 0 {
			w.resync = resync
		}
		w.k.fail(func(c call) *fault {
			if w.crashed.Load() {
				return &fault{err: errCrashed}
			}
			return script(w, c)
		})
		w.start()
		for i, step := range steps {
			if i > 0 {
				time.Sleep(pause)
			}
			step(w)
			w.waitIdle()
			if w.crashed.Load() {
				w.stop()
				w.crashed.Store(false)
				w.amnesia = true
				w.start()
				w.waitIdle()
			}
			if resync == 0 {
				w.checkReported()
			}
		}
		w.k.fail(nil)
		time.Sleep(10*testBackoff + 3*resync)
		w.waitIdle()
		w.checkApplied()
		w.stop()
	})
	return w
}

var errCrashed = errors.New("the agent is no more")

// calls returns the calls of the steps without faults.
func calls(t *testing.T, pause, resync time.Duration) []call {
	t.Helper()
	var all []call
	w := play(t, pause, resync, func(_ *world, c call) *fault { all = append(all, c); return nil })
	report(t, w, "though nothing fails")
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// report fails the test with the errors, at the first step with any.
func report(t *testing.T, w *world, what string) {
	t.Helper()
	if len(w.errs) > 0 {
		t.Fatalf("%s:\n  %s\nthe last calls:\n%s", what, strings.Join(w.errs, "\n  "), w.k.history())
	}
}

// stride is 1 if every fault happens at every call. Otherwise, each happens at every stride-th one, and
// each call has some: TestEveryFaultAtEachCall has the others.
var stride = 3

// eachFault runs the steps once for each call and each way in which it may fail, for length calls
// of its kind.
func eachFault(t *testing.T, pause, resync time.Duration, length int, ways func(kind string) []fault) {
	t.Helper()
	runs := 0
	for _, c := range calls(t, pause, resync) {
		for i := range ways(c.kind) {
			if (c.n+i)%stride != 0 {
				continue
			}
			what, failed := "no fault", 0
			w := play(t, pause, resync, func(_ *world, now call) *fault {
				// The order of calls may differ from run to run within a batch.
				ways := ways(now.kind)
				if now.n < c.n || failed == length || len(ways) == 0 || length > 1 && now.kind != c.kind {
					return nil
				}
				f := ways[i%len(ways)]
				if failed++; failed == 1 {
					what = fmt.Sprintf("%s fails with %v, done: %v, %d times", now, f.err, f.done, length)
				}
				return &f
			})
			report(t, w, what)
			runs++
		}
	}
	t.Logf("%d runs", runs)
}

// Whichever call fails, and however, what is missing is reported while it is, and retries apply it
// without a read of the whole kernel.
// Slow: hundreds of runs, one for each call and failure.
func TestEachCallFails(t *testing.T) {
	for _, c := range []struct {
		length int
		pause  time.Duration
	}{{1, 0}, {1, 3 * time.Millisecond}, {3, 3 * time.Millisecond}, {40, 3 * time.Millisecond}} {
		t.Run(fmt.Sprintf("%d times, %v between steps", c.length, c.pause), func(t *testing.T) {
			eachFault(t, c.pause, 0, c.length, honest)
		})
	}
}

// Answers that only a foreign hand explains, though there was none: a resync
// puts it right.
func TestEachCallLies(t *testing.T) {
	for _, length := range []int{1, 5} {
		t.Run(fmt.Sprintf("%d times", length), func(t *testing.T) {
			eachFault(t, 3*time.Millisecond, 100*time.Millisecond, length, lies)
		})
	}
}

// If an agent ends at any call, before or after it is carried out, the next agent takes over.
// Slow: hundreds of runs, two for each call.
func TestCrashAtEachCall(t *testing.T) {
	for _, pause := range []time.Duration{0, 3 * time.Millisecond} {
		for n := range len(calls(t, pause, 0)) {
			for _, done := range []bool{false, true} {
				var what string
				w := play(t, pause, 0, func(w *world, now call) *fault {
					if now.n != n+1 {
						return nil
					}
					what = fmt.Sprintf("the agent ends at %s, done: %v", now, done)
					w.crashed.Store(true)
					return &fault{err: errCrashed, done: done}
				})
				report(t, w, what)
			}
		}
	}
}

// drifts are changes by another program at any time.
var drifts = map[string]func(w *world){
	"service deleted": func(w *world) { delete(w.k.services, oneFrontend().Key) },
	"all ours deleted": func(w *world) {
		maps.DeleteFunc(w.k.services, func(key vip.FrontendKey, _ *fakeService) bool { return w.foreign[key] == nil })
	},
	"service altered": func(w *world) {
		for key, s := range w.k.services {
			if w.foreign[key] == nil {
				s.Scheduler, s.Flags = "sed", kernel.FlagOnePacket
			}
		}
	},
	"scheduler of no service's": func(w *world) {
		for key, s := range w.k.services {
			if w.foreign[key] == nil {
				s.Scheduler = "lblc"
			}
		}
	},
	"destinations deleted": func(w *world) {
		for key, s := range w.k.services {
			if w.foreign[key] == nil {
				clear(s.dests)
			}
		}
	},
	"destinations altered": func(w *world) {
		for key, s := range w.k.services {
			for a, d := range s.dests {
				if w.foreign[key] == nil {
					d.Weight, d.Forward = 99, kernel.ForwardTunnel
					s.dests[a] = d
				}
			}
		}
	},
	"destination added": func(w *world) {
		for key, s := range w.k.services {
			if w.foreign[key] == nil {
				a := netip.AddrPortFrom(key.Addr.Next(), foreignPort)
				s.dests[a] = kernel.Dest{Addr: a, Weight: 1}
			}
		}
	},
	"service added": func(w *world) {
		key := vip.FrontendKey{Addr: netip.MustParseAddr("10.96.9.9"), Port: 1, Protocol: vip.TCP}
		w.k.put(kernel.Service{Key: key, Scheduler: "rr", Netmask: kernel.Netmask4}, kernel.Dest{Addr: addrPort("10.1.0.1:1"), Weight: 1})
	},
	"tunnels deleted": func(w *world) { clear(w.k.tunnels) },
	"tunnels down": func(w *world) {
		for a := range w.k.tunnels {
			w.k.tunnels[a] = false
		}
	},
	"tunnel added":  func(w *world) { w.k.tunnels[netip.MustParseAddr("10.20.0.9")] = true },
	"table deleted": func(w *world) { w.k.table, w.unrecorded = nil, true },
	"rule deleted": func(w *world) {
		if w.k.table != nil {
			w.k.table.intact = false
		}
	},
	"elements deleted": func(w *world) {
		w.unrecorded = true
		if w.k.table != nil {
			clear(w.k.table.elements)
		}
	},
	"elements added": func(w *world) {
		if w.k.table != nil {
			for _, e := range []filter.Element{{Set: filter.SetRefused, Key: oneFrontend().Key}, filter.AddrElement(filter.SetVIPs, netip.MustParseAddr("10.96.9.8")), filter.AddrElement(filter.SetHairpin, netip.MustParseAddr("10.1.0.2"))} {
				w.k.table.elements[e] = struct{}{}
			}
		}
	},
	"device deleted": func(w *world) { w.k.device = nil },
	"device down":    func(w *world) { w.k.setDown() },
	"routes deleted": func(w *world) {
		if w.k.device != nil {
			clear(w.k.device.routes)
		}
	},
	"module reloaded": func(w *world) { w.k.unload(); w.k.reload(); clear(w.foreign) },
	"sysctls reset": func(w *world) {
		for key := range w.k.sysctls {
			w.k.sysctls[key] = "0"
		}
	},
}

// Any change by another program between two calls is repaired.
// Slow: more than a thousand runs, one for each change and every third call.
func TestDriftAtEachCall(t *testing.T) {
	const pause, resync = 3 * time.Millisecond, 100 * time.Millisecond
	n := len(calls(t, pause, resync))
	for i, name := range slices.Sorted(maps.Keys(drifts)) {
		t.Run(name, func(t *testing.T) {
			for at := i % stride; at < n; at += stride {
				var before call
				w := play(t, pause, resync, func(w *world, now call) *fault {
					if now.n == at+1 {
						before = now
						drifts[name](w)
					}
					return nil
				})
				report(t, w, fmt.Sprintf("%s before %s", name, before))
			}
		})
	}
}

// A scheduler that no service can have differs from any that is wanted, is named,
// and is all that is said to be wrong.
func TestForeignSchedulerIsNamed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		w.start()
		f := oneFrontend()
		w.put(f)
		w.waitIdle()
		defer w.stop()
		for _, name := range []string{"lblcr", "twos", "somebodys", noScheduler} {
			w.k.alter(func() { w.k.services[f.Key].Scheduler = name })
			for o, err := range w.target.Actual(t.Context()) {
				if err != nil || o.Value.Key != f.Key {
					t.Fatal(o, err)
				}
				if o.Value.Scheduler != vip.OtherScheduler || !slices.Equal(o.Damage, []string{"scheduler is " + name}) || w.target.Same(f, &o.Value) {
					t.Errorf("%s: %s, %q", name, o.Value.Scheduler, o.Damage)
				}
			}
		}
	})
}

// A deleted device is created again with every address, not only those of the change that detected
// its absence, however its creation fails.
func TestDeviceComesBackWhole(t *testing.T) {
	for _, kind := range []string{"link find", "link add", "link set", "route send", "route message"} {
		for i := range honest(kind) {
			inWorld(t, fmt.Sprintf("%s fails with %+v", kind, honest(kind)[i]), func(w *world) {
				w.start()
				steps[0](w)
				w.waitIdle()
				failed := false
				w.k.alter(func() { w.k.device = nil })
				w.k.fail(func(c call) *fault {
					if c.kind != kind || failed || w.k.device == nil && strings.HasPrefix(kind, "route") {
						return nil
					}
					failed = true
					return &honest(kind)[i]
				})
				steps[1](w)
				time.Sleep(10 * testBackoff)
				w.waitIdle()
				w.checkApplied()
				w.stop()
			})
		}
	}
}

// A module that was unloaded and loaded again between two changes is not a missing scheduler: the
// next change finds the netlink family again and is applied.
func TestChangeAfterAReload(t *testing.T) {
	k := newFakeKernel()
	target := k.target(t)
	a := listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80", "10.1.0.2:80")
	b := listener("10.96.0.2:80", vip.TCP, "10.1.0.1:80")
	heavier := listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80*5", "10.1.0.2:80")
	for _, batch := range [][]updateOf{{{Key: a.Key, New: a}}, {{Key: a.Key, Old: a, New: heavier}, {Key: b.Key, New: b}}} {
		k.alter(func() { k.unload(); k.reload() })
		put(t, target, batch...)
	}
	expect.Empty(t, k.witness(map[vip.FrontendKey]*vip.Frontend{a.Key: heavier, b.Key: b}, nil))
}

// The error of a backend that the kernel rejects has a hint, and the next attempt succeeds.
func TestRejectedBackendHasAHint(t *testing.T) {
	k := newFakeKernel()
	target := k.target(t)
	k.fail(func(c call) *fault {
		if strings.Contains(c.what, "add destination") {
			return &fault{err: unix.EINVAL}
		}
		return nil
	})
	f := listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80")
	batch := []updateOf{{Key: f.Key, New: f}}
	must.Succeed(t, target.Apply(t.Context(), batch))
	problem, _ := errors.AsType[vip.Problem](batch[0].Err)
	expect.Contains(t, problem.Message, "10.1.0.1:80")
	expect.Contains(t, problem.Hint, "no interface is up")
	k.fail(nil)
	put(t, target, batch...)
	expect.Empty(t, k.witness(map[vip.FrontendKey]*vip.Frontend{f.Key: f}, nil))
}

// The entries of connection tracking are read once for a batch and family, and only for UDP services that are new or that
// lost backends.
func TestUDPChangesShareOneDump(t *testing.T) {
	k := newFakeKernel()
	target := k.target(t)
	all := func(backends ...string) (out []*vip.Frontend) {
		for i := range 20 {
			out = append(out, listener(fmt.Sprintf("10.96.1.%d:53", i+1), vip.UDP, backends...))
		}
		return out
	}
	old, six := all(), listener("[fd96::1]:53", vip.UDP, "[fd01::1]:53")
	clear(old)
	to := func(new []*vip.Frontend) (batch []updateOf) {
		for i, f := range new {
			u := updateOf{Old: old[i], New: f}
			if u.Key = vip.KeyOfFrontend(cmp.Or(f, old[i])); u.Old != nil || u.New != nil {
				batch = append(batch, u)
			}
		}
		old = new
		return batch
	}
	half := all("10.1.0.2:53")
	clear(half[:10])
	both := all("10.1.0.1:53", "10.1.0.2:53")
	tcp := listener("10.96.0.1:53", vip.TCP, "10.1.0.1:53")
	for _, c := range []struct {
		name  string
		batch []updateOf
		dumps int
	}{
		{"tcp comes, with the table", []updateOf{{Key: tcp.Key, New: tcp}}, 1},
		{"tcp goes", []updateOf{{Key: tcp.Key, Old: tcp}}, 0},
		{"services come", to(both), 1},
		{"weights", to(all("10.1.0.1:53*0", "10.1.0.2:53")), 0},
		{"backends go", to(all("10.1.0.2:53")), 1},
		{"backends come", to(both), 0},
		{"services and backends go", to(half), 1},
		{"both come back, and one of ipv6", append(to(both), updateOf{Key: six.Key, New: six}), 2},
		{"all backends go", to(all()), 1},
		{"services without backends go", to(make([]*vip.Frontend, 20)), 0},
	} {
		k.trace = nil
		put(t, target, c.batch...)
		if target.Unclean() {
			must.Succeed(t, target.Clean(t.Context()))
		}
		expect.Equal(t, strings.Count(k.history(), "conntrack sweep"), c.dumps, c.name)
	}
}
