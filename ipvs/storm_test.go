package ipvs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/vip"
)

// act is one event: a desired change, a fault, a change by another program, or time.
type act struct {
	what string
	do   func(w *world)
}

// storm is the script of faults.
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

func drawAct(t *rapid.T) act {
	switch rapid.IntRange(0, 11).Draw(t, "act") {
	case 0, 1, 2, 3:
		f := drawWish(t)
		return act{"wish for " + planetest.Brief(f), func(w *world) { w.place(f) }}
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

// After any sequence of desired changes, faults and changes by other programs, the final state is
// the desired one, and nothing else was changed.
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
				w.waitIdle()
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
			w.waitIdle()
			w.checkApplied()
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

// place adds a desired frontend, and removes those with one of its ports.
func (w *world) place(f *vip.Frontend) {
	for k, g := range w.want {
		if usage.Clash(f, g) {
			w.set(k, nil)
		}
	}
	w.put(f)
}
