//go:build !vm

package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

// act is one thing that happens: a wish, a fault, a foreign hand, time.
type act struct {
	what string
	do   func(w *world)
}

// storm is what goes wrong, as script.
type storm struct {
	in, length, way int // from the in-th call on, length calls fail
	crash, done     bool
}

func (s *storm) script(w *world, c call) *fault {
	if s.in--; s.in > 0 || s.length <= 0 {
		return nil
	}
	s.length--
	if s.crash {
		w.crashed.Store(true)
		return &fault{err: errCrashed, done: s.done}
	}
	ways := honest(c.kind)
	f := ways[s.way%len(ways)]
	return &f
}

// drawListener draws a frontend at a key: backends in and out of the pod
// ranges, shared between frontends, weights that may be 0.
func drawListener(t *rapid.T, at string, p vip.Protocol) *vip.Frontend {
	f := listener(at, p)
	f.Scheduler = rapid.SampledFrom([]vip.Scheduler{vip.RoundRobin, vip.WeightedRoundRobin, vip.SourceHash, vip.MaglevHash}).Draw(t, "scheduler")
	f.Masquerade = rapid.SampledFrom([]vip.Masquerade{vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever, vip.MasqueradeOwn}).Draw(t, "masquerade")
	f.Affinity = rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "affinity")
	if f.Kind == vip.OnVIP && rapid.Bool().Draw(t, "restricted") {
		f.SourceRanges = rapid.SliceOfNDistinct(rapid.SampledFrom(sourceRanges), 0, 3, rapid.ID[netip.Prefix]).Draw(t, "source ranges")
	}
	if f.Kind == vip.OnVIP && rapid.IntRange(0, 3).Draw(t, "direct") == 0 {
		f.Forward, f.Masquerade = vip.ForwardDirect, vip.MasqueradeNever
		f.OnePacket = p == vip.UDP && f.Affinity == 0
	}
	backends := []string{"10.1.0.1:80", "10.1.0.1:81", "10.1.0.2:80", "10.1.0.3:80", "10.9.0.1:80"}
	if f.Key.Addr.Is6() {
		backends = []string{"[fd01::1]:80", "[fd01::2]:80", "[fd09::1]:80"}
	}
	for _, b := range backends {
		if f.Forward == vip.ForwardDirect && addrPort(b).Port() != f.Key.Port {
			continue
		}
		if weight := rapid.IntRange(-2, 2).Draw(t, "weight"); weight >= 0 {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: addrPort(b), Weight: uint32(weight)})
		}
	}
	return f
}

// drawMarked makes of a frontend one that is a service by mark: for ranges of ports
// that overlap each other's, or for an audience.
func drawMarked(t *rapid.T, f *vip.Frontend) *vip.Frontend {
	f.Key.Audience = rapid.SampledFrom([]vip.Audience{vip.Everyone, vip.InternalClients}).Draw(t, "audience")
	if f.Key.Audience == vip.Everyone || rapid.Bool().Draw(t, "ranged") {
		f.Key.Port = rapid.SampledFrom([]uint16{80, 90}).Draw(t, "first port")
		f.Key.LastPort = rapid.SampledFrom([]uint16{95, 100}).Draw(t, "last port")
		for i := range f.Backends {
			f.Backends[i].Addr = netip.AddrPortFrom(f.Backends[i].Addr.Addr(), 0)
		}
		f.Backends = slices.CompactFunc(f.Backends, func(a, b vip.Endpoint) bool { return a.Addr == b.Addr })
	}
	if unsupported(f) != nil {
		f.Affinity = 0
	}
	return f
}

// drawReal draws a frontend of a real server at a key.
func drawReal(t *rapid.T, at string, p vip.Protocol) *vip.Frontend {
	f := listener(at, p)
	f.Kind, f.Masquerade = vip.OnRealServer, vip.MasqueradeNever
	f.Forward = rapid.SampledFrom([]vip.Forward{vip.ForwardDirect, vip.ForwardTunnel}).Draw(t, "forward")
	own := []string{"10.20.0.1:80", "10.20.0.2:80"}
	if f.Key.Addr.Is6() {
		own = []string{"[fd20::1]:80"}
	}
	for i, b := range own {
		if i == 0 || rapid.Bool().Draw(t, "second") {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: addrPort(b), Weight: 1})
		}
	}
	return f
}

func drawAct(t *rapid.T) act {
	keys := []struct {
		at string
		p  vip.Protocol
	}{
		{"10.96.0.8:80", vip.TCP}, {"10.96.0.9:80", vip.UDP}, {"[fd96::8]:80", vip.TCP}, // on this host as a real server
		{"10.96.0.1:80", vip.TCP}, {"10.96.0.1:53", vip.UDP}, {"10.96.0.2:80", vip.TCP}, {"10.96.0.3:80", vip.TCP},
		{"[fd96::1]:80", vip.TCP}, {"192.0.2.1:30080", vip.TCP}, {"192.0.2.1:30053", vip.UDP},
	}
	key := rapid.SampledFrom(keys).Draw(t, "key")
	switch rapid.IntRange(0, 11).Draw(t, "act") {
	case 0, 1, 2, 3:
		draw := drawListener
		if strings.Contains(key.at, ".8:") || strings.Contains(key.at, ".9:") || strings.Contains(key.at, ":8]:") {
			draw = drawReal
		}
		f := draw(t, key.at, key.p)
		if f.Kind == vip.OnVIP && rapid.IntRange(0, 2).Draw(t, "marked") == 0 {
			f = drawMarked(t, f)
		}
		return act{"wish for " + brief(f), func(w *world) { w.place(f) }}
	case 4:
		nth := rapid.IntRange(0, 9).Draw(t, "nth")
		return act{fmt.Sprintf("drop the %d. of all", nth), func(w *world) {
			if all := slices.SortedFunc(maps.Keys(w.want), vip.CompareFrontendKeys); len(all) > 0 {
				w.set(all[nth%len(all)], nil)
			}
		}}
	case 5, 6:
		s := storm{
			in: rapid.IntRange(1, 20).Draw(t, "in"), length: rapid.SampledFrom([]int{1, 1, 2, 8, 50}).Draw(t, "length"),
			way: rapid.IntRange(0, 20).Draw(t, "way"),
		}
		return act{fmt.Sprintf("fail %+v", s), func(w *world) { w.k.fail(func(c call) *fault { return s.script(w, c) }) }}
	case 7:
		s := storm{in: rapid.IntRange(1, 20).Draw(t, "in"), length: 1, crash: true, done: rapid.Bool().Draw(t, "done")}
		return act{fmt.Sprintf("crash %+v", s), func(w *world) {
			w.k.fail(func(c call) *fault {
				if w.crashed.Load() {
					return &fault{err: errCrashed}
				}
				return s.script(w, c)
			})
		}}
	case 8:
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(drifts))).Draw(t, "drift")
		return act{name, func(w *world) { w.k.alter(func() { drifts[name](w) }) }}
	case 9:
		return act{"what the kernel has changes", func(w *world) {
			w.k.alter(func() { w.k.schedulers["rr"] = !w.k.schedulers["rr"]; w.k.loopback = !w.k.loopback })
		}}
	case 10:
		return act{"module out", func(w *world) { w.k.alter(func() { w.k.unload(); clear(w.foreign) }) }}
	}
	return act{"module in", func(w *world) {
		w.k.alter(func() {
			if !w.k.module {
				w.k.reload()
			}
		})
	}}
}

// Whatever is wished for, fails and is altered behind our back, in whatever
// order: once it ends, all is as wished, and nothing else was touched.
func TestStorm(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var acts []act
		var pauses []time.Duration
		for range rapid.IntRange(1, 15).Draw(rt, "acts") {
			acts = append(acts, drawAct(rt))
			pauses = append(pauses, rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond}).Draw(rt, "pause"))
		}
		var w *world
		bubble.Test(t, func(*testing.T) {
			w = newWorld()
			w.resync = 100 * time.Millisecond
			w.start()
			for i, a := range acts {
				a.do(w)
				time.Sleep(pauses[i])
				w.settle()
				if w.crashed.Load() {
					w.stop()
					w.k.fail(nil)
					w.crashed.Store(false)
					w.amnesia = true
					w.k.alter(func() {
						if !w.k.module {
							w.k.reload()
						}
					})
					w.start()
				}
			}
			w.k.fail(nil)
			w.k.alter(func() {
				w.k.schedulers["rr"], w.k.loopback = true, true
				if !w.k.module {
					w.k.reload()
				}
			})
			time.Sleep(time.Second)
			w.settle()
			w.right()
			w.stop()
		})
		if len(w.errs) > 0 {
			var b strings.Builder
			for i, a := range acts {
				fmt.Fprintf(&b, "%s, then %v\n", a.what, pauses[i])
			}
			rt.Fatalf("after\n%s%s\nthe last calls:\n%s", &b, strings.Join(w.errs, "\n"), w.k.history())
		}
	})
}

// place wishes for a frontend, and no longer for those that have one of its ports.
func (w *world) place(f *vip.Frontend) {
	for k, g := range w.want {
		if k != f.Key && k.Ranged() && f.Key.Ranged() && portSpaceOf(g) == portSpaceOf(f) && portsOf(k).Overlaps(portsOf(f.Key)) {
			w.set(k, nil)
		}
	}
	w.put(f)
}

func brief(f *vip.Frontend) string {
	s := fmt.Sprintf("%s %s %s %v %s %v:", f.Key, f.Scheduler, f.Masquerade, f.Affinity, f.Forward, f.SourceRanges)
	for _, b := range f.Backends {
		s += fmt.Sprintf(" %s*%d", b.Addr, b.Weight)
	}
	return s
}
