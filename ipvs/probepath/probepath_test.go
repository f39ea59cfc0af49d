package probepath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// path returns the path number i. Every second one is of IPv6, every third one is a tunnel.
func path(i int) vip.ProbePath {
	p := vip.ProbePath{VIP: netip.MustParseAddr("10.96.0.1"), Backend: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Forward: vip.ForwardDirect}
	if i%2 == 1 {
		p.VIP, p.Backend = netip.MustParseAddr("fd96::1"), netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)})
	}
	if i%3 == 2 {
		p.Forward = vip.ForwardTunnel
	}
	return p
}

func paths(n int) (all []vip.ProbePath) {
	for i := range n {
		all = append(all, path(i))
	}
	return all
}

func additions(all ...vip.ProbePath) (batch []updateOf) {
	for i := range all {
		batch = append(batch, updateOf{Key: all[i], New: &all[i]})
	}
	return batch
}

func removals(all ...vip.ProbePath) (batch []updateOf) {
	for i := range all {
		batch = append(batch, updateOf{Key: all[i], Old: &all[i]})
	}
	return batch
}

// put applies a batch and fails the test if a part of it fails.
func put(t *testing.T, target *Target, batch []updateOf) {
	t.Helper()
	must.Succeed(t, target.Apply(t.Context(), batch))
	for _, u := range batch {
		must.Succeed(t, u.Err, u.Key)
	}
}

// actual returns what Actual yields, and the paths with damage.
func actual(t *testing.T, target *Target) (all, damaged []vip.ProbePath) {
	t.Helper()
	for o, err := range target.Actual(t.Context()) {
		must.Succeed(t, err)
		all = append(all, o.Value)
		if len(o.Damage) > 0 {
			damaged = append(damaged, o.Value)
		}
	}
	return all, damaged
}

// One path costs the same few messages, however many there are, and nothing of the others changes.
func TestOnePathIsFewMessages(t *testing.T) {
	k := newFake()
	target := k.target()
	all := paths(1000)
	put(t, target, additions(all...))
	must.True(t, k.holds(target, all...), "the kernel does not have the paths")
	one := path(1000)
	k.log = nil
	put(t, target, additions(one))
	mark := must.Get(target.Mark(one))(t)
	want := []string{"transaction", fmt.Sprintf("add ipvs service by mark %#x", mark), fmt.Sprintf("add destination %s to the ipvs service by mark %#x", one.Backend, mark)}
	expect.SameList(t, k.log, want, "an addition took")
	expect.True(t, k.holds(target, append(all, one)...), "the kernel does not have the paths after an addition")
	k.log = nil
	put(t, target, removals(one))
	if want := []string{fmt.Sprintf("delete ipvs service by mark %#x", mark), "transaction"}; !slices.Equal(k.log, want) {
		t.Errorf("a removal took %q, want %q", k.log, want)
	}
	_, err := target.Mark(one)
	expect.Is(t, err, ErrNoPath, "a removed path has a mark")
	expect.True(t, k.holds(target, all...), "the kernel does not have the paths after a removal")
}

// A restart adopts what is there without a change, and its marks. A later addition gets a mark that
// no path has.
func TestRestartAdopts(t *testing.T) {
	k := newFake()
	first := k.target()
	put(t, first, additions(paths(20)...))
	k.log = nil
	second := k.target()
	all, damaged := actual(t, second)
	if len(all) != 20 || len(damaged) > 0 || len(k.log) > 0 {
		t.Errorf("adopted %d paths, %d damaged, with %q", len(all), len(damaged), k.log)
	}
	for _, p := range paths(20) {
		before, _ := first.Mark(p)
		if mark, err := second.Mark(p); err != nil || mark != before || !slices.Contains(all, p) {
			t.Errorf("%s has mark %#x after the restart, %v, before %#x", p, mark, err, before)
		}
	}
	put(t, second, additions(path(20)))
	expect.True(t, k.holds(second, paths(21)...), "the kernel does not have the paths after the restart")
}

// The table goes with the last path, and comes with the first.
func TestNoPathNoTable(t *testing.T) {
	k := newFake()
	target := k.target()
	if all, _ := actual(t, target); len(all) > 0 || len(k.log) > 0 {
		t.Errorf("%v with %q", all, k.log)
	}
	put(t, target, additions(path(0)))
	put(t, target, removals(path(0)))
	if k.elements != nil || len(k.services) > 0 {
		t.Errorf("left: %v, %v", k.elements, k.services)
	}
	put(t, target, additions(path(1)))
	expect.True(t, k.holds(target, path(1)), "the path is missing")
}

// Damage by another program is found and repaired. Meanwhile the path has no mark.
func TestDriftIsRepaired(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(k *fakeKernel, id serviceID, p vip.ProbePath)
		all    bool // every path is affected
	}{
		{"service deleted", func(k *fakeKernel, id serviceID, _ vip.ProbePath) { delete(k.services, id) }, false},
		{"another destination", func(k *fakeKernel, id serviceID, _ vip.ProbePath) {
			s := k.services[id]
			s.Dests = []kernel.Dest{{Addr: netip.MustParseAddrPort("10.9.9.9:0"), Weight: 1, Forward: s.Dests[0].Forward}}
			k.services[id] = s
		}, false},
		{"weight 0", func(k *fakeKernel, id serviceID, _ vip.ProbePath) {
			s := k.services[id]
			s.Dests = []kernel.Dest{{Addr: s.Dests[0].Addr, Forward: s.Dests[0].Forward}}
			k.services[id] = s
		}, false},
		{"no element for answers", func(k *fakeKernel, id serviceID, p vip.ProbePath) {
			delete(k.elements, filter.ProbeElements(p.VIP, p.Backend, id.mark)[1])
		}, true},
		{"table deleted", func(k *fakeKernel, _ serviceID, _ vip.ProbePath) { k.elements = nil }, true},
		{"rules changed", func(k *fakeKernel, _ serviceID, _ vip.ProbePath) { k.damaged = true }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newFake()
			target := k.target()
			all := paths(6)
			put(t, target, additions(all...))
			victim := all[5]
			mark, _ := target.Mark(victim)
			c.damage(k, serviceID{vip.FamilyOf(victim.VIP), mark}, victim)
			have, damaged := actual(t, target)
			if len(have) != len(all) || !slices.Contains(damaged, victim) || !c.all && len(damaged) != 1 {
				t.Fatalf("found %v damaged of %v", damaged, have)
			}
			_, err := target.Mark(victim)
			expect.True(t, err != nil, "a damaged path has a mark")
			batch := additions(damaged...)
			for i := range batch {
				batch[i].Old, batch[i].Repair = batch[i].New, true
			}
			put(t, target, batch)
			expect.True(t, k.holds(target, all...), "the kernel does not have the paths after the repair")
			if _, damaged := actual(t, target); len(damaged) > 0 {
				t.Errorf("still damaged: %v", damaged)
			}
		})
	}
}

// A table that is gone is rebuilt with the next path.
func TestTableDeleted(t *testing.T) {
	k := newFake()
	target := k.target()
	put(t, target, additions(paths(3)...))
	k.elements = nil
	put(t, target, additions(path(3)))
	expect.True(t, k.holds(target, paths(4)...), "the kernel does not have the paths")
}

// A foreign service with a mark of ours stays as it is. The path fails once and then gets another
// mark.
func TestForeignMark(t *testing.T) {
	k := newFake()
	foreign := serviceID{vip.IPv4, filter.ProbeMarkAt(0)}
	k.services[foreign] = kernel.State{Service: kernel.Service{Mark: foreign.mark, Scheduler: "sed"}}
	target := k.target()
	batch := additions(path(0))
	must.Succeed(t, target.Apply(t.Context(), batch))
	if batch[0].Err == nil || !strings.Contains(batch[0].Err.Error(), "foreign service") {
		t.Errorf("the first attempt: %v", batch[0].Err)
	}
	expect.Empty(t, k.elements, "the table has the foreign mark")
	put(t, target, additions(path(0)))
	if s := k.services[foreign]; s.Scheduler != "sed" || len(s.Dests) > 0 || len(k.services) != 2 {
		t.Errorf("the kernel has %v", k.services)
	}
}

// If the answer to the addition of a service is lost, the next attempt finds out which service the
// kernel has. It keeps a foreign one, and replaces ours.
func TestLostAnswer(t *testing.T) {
	for _, p := range paths(6) {
		for _, isForeign := range []bool{true, false} {
			for _, restarts := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, foreign %t, restart %t", p, isForeign, restarts), func(t *testing.T) {
					k := newFake()
					id := serviceID{vip.FamilyOf(p.VIP), filter.ProbeMarkAt(0)}
					theirs := kernel.State{Service: kernel.Service{Mark: id.mark, Scheduler: "sed"},
						Dests: []kernel.Dest{{Addr: netip.MustParseAddrPort("10.9.9.9:0"), Weight: 1, Forward: kernel.ForwardTunnel}}}
					if isForeign {
						k.services[id] = theirs
					}
					target := k.target()
					k.cut = func(c *change) bool { return c.cmd == kernel.CmdNewService }
					must.Is(t, target.Apply(t.Context(), additions(p)), errSocket)
					k.cut = func(*change) bool { return false }
					if restarts {
						target = k.target()
					}
					if restarts || isForeign {
						all, damaged := actual(t, target)
						if len(all) != 1 || len(damaged) != 1 {
							t.Errorf("%v, damaged: %v", all, damaged)
						}
						batch := additions(p)
						if all[0] != p { // nothing is left that shows how it forwards
							batch = append(removals(all...), batch...)
						}
						must.Succeed(t, target.Apply(t.Context(), batch))
					}
					put(t, target, additions(p))
					if isForeign {
						if s := k.services[id]; s.Service != theirs.Service || !slices.Equal(s.Dests, theirs.Dests) {
							t.Errorf("the foreign service is %+v", s)
						}
						delete(k.services, id)
					}
					if !k.holds(target, p) {
						t.Errorf("the kernel has %v, %v", k.services, k.elements)
					}
				})
			}
		}
	}
}

// A mark without a service of ours deletes none: a foreign one may have come since.
func TestForeignServiceAfterARejection(t *testing.T) {
	for _, remove := range []bool{false, true} {
		k := newFake()
		target := k.target()
		k.fail = func(*change) error { return unix.ENOENT }
		batch := additions(path(0))
		if err := target.Apply(t.Context(), batch); err != nil || batch[0].Err == nil {
			t.Fatal(err, batch[0].Err)
		}
		k.fail = func(*change) error { return nil }
		foreign := serviceID{vip.IPv4, filter.ProbeMarkAt(0)}
		k.services[foreign] = kernel.State{Service: kernel.Service{Mark: foreign.mark, Scheduler: "sed"}}
		if remove {
			put(t, target, removals(path(0)))
		} else if err := target.Apply(t.Context(), additions(path(0))); err != nil {
			t.Fatal(err)
		}
		if s := k.services[foreign]; s.Scheduler != "sed" || len(k.services) != 1 || len(k.elements) > 0 {
			t.Errorf("removal %t: the kernel has %v, %v", remove, k.services, k.elements)
		}
	}
}

// A rejected part fails its path alone, without a mark, and the next attempt repairs it.
func TestRejected(t *testing.T) {
	k := newFake()
	target := k.target()
	k.fail = func(c *change) error {
		if c.cmd == kernel.CmdNewDest && c.path == path(1) {
			return unix.EINVAL
		}
		return nil
	}
	batch := additions(paths(3)...)
	must.Succeed(t, target.Apply(t.Context(), batch))
	for i, u := range batch {
		if _, err := target.Mark(u.Key); (u.Err != nil) != (i == 1) || (err != nil) != (i == 1) {
			t.Errorf("path %d: %v, mark %v", i, u.Err, err)
		}
	}
	k.fail = func(*change) error { return nil }
	batch = additions(path(1))
	batch[0].Repair = true
	put(t, target, batch)
	expect.True(t, k.holds(target, paths(3)...), "the kernel does not have the paths")
}

// Without connection tracking of IPVS no answer would be understood, so no path has a mark.
func TestWithoutConntrack(t *testing.T) {
	k := newFake()
	target := k.target()
	put(t, target, additions(path(0)))
	k.conntrack = false
	actual(t, target)
	if _, err := target.Mark(path(0)); err == nil || !strings.Contains(err.Error(), "conntrack") {
		t.Errorf("the path has a mark: %v", err)
	}
	k.conntrack = true
	actual(t, target)
	if _, err := target.Mark(path(0)); err != nil {
		t.Errorf("the path has no mark: %v", err)
	}
}

// Before the host has the virtual address, a probe would leave the host, so there is no mark.
func TestWithoutVIP(t *testing.T) {
	k := newFake()
	target := k.target()
	put(t, target, additions(path(0)))
	k.noVIP = true
	if _, err := target.Mark(path(0)); !errors.Is(err, ErrNoVIP) {
		t.Errorf("the path has a mark: %v", err)
	}
	k.noVIP = false
	if _, err := target.Mark(path(0)); err != nil {
		t.Errorf("the path has no mark: %v", err)
	}
}

// Remove leaves nothing of ours, also after a restart, and nothing of others is touched.
func TestRemove(t *testing.T) {
	k := newFake()
	put(t, k.target(), additions(paths(5)...))
	foreign := serviceID{vip.IPv4, filter.ProbeMarkAt(77)}
	k.services[foreign] = kernel.State{Service: kernel.Service{Mark: foreign.mark}}
	target := k.target()
	if all, err := target.readState(t.Context()); len(all) != 5 || err != nil {
		t.Errorf("found %v, %v", all, err)
	}
	must.Succeed(t, target.Remove(t.Context()))
	if _, there := k.services[foreign]; !there || len(k.services) != 1 || k.elements != nil {
		t.Errorf("left: %v, %v", k.services, k.elements)
	}
}
