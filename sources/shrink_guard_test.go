package sources

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// doubtful is a driven source with a guard.
type doubtful struct {
	*driven
	hold time.Duration
}

func (d doubtful) ShrinkGuard() time.Duration { return d.hold }

// guarded runs a bench with one source that has a guard of 30 s.
func guarded(t *testing.T, prior int) (*bench, Sink, *driven) {
	b, src := newBench(), newDriven()
	b.options.SyncTimeout = DefaultShrinkGuard / 3 // so that the timeout does not end a doubt
	b.options.PriorServices = func(string) int { return prior }
	b.Add("consul", "consul", doubtful{src, DefaultShrinkGuard})
	b.start(t)
	return b, <-src.out, src
}

func numbered(n int) []vip.Service {
	var out []vip.Service
	for i := range n {
		out = append(out, service(fmt.Sprintf("s%03d", i)))
	}
	return out
}

func keysOf(in []vip.Service) []vip.ServiceKey {
	var out []vip.ServiceKey
	for _, s := range in {
		out = append(out, s.Key)
	}
	return out
}

// held returns the problems of guards as "service: message".
func (b *bench) held() string {
	var out []string
	for _, p := range b.status("consul").Problems {
		if p.Code == vip.CodeHeldBack {
			out = append(out, p.Service+": "+p.Message)
		}
	}
	return strings.Join(out, "; ")
}

// A removal of more than half of a source's services is held back until its deadline. Other
// removals happen at once.
func TestServicesThatVanishTogether(t *testing.T) {
	for _, test := range []struct {
		name   string
		had    int
		remove func(out Sink, all []vip.Service)
		now    int // in effect after it
		then   int // in effect after 30 s
	}{
		{"an empty list", 100, func(out Sink, all []vip.Service) { out.Replace(nil, nil) }, 100, 0},
		{"an empty list, of two", 2, func(out Sink, all []vip.Service) { out.Replace(nil, nil) }, 2, 0},
		{"an empty list, of one", 1, func(out Sink, all []vip.Service) { out.Replace(nil, nil) }, 1, 0},
		{"the only one, by name", 1, func(out Sink, all []vip.Service) { out.Delete(keysOf(all)...) }, 0, 0},
		{"both, by name", 2, func(out Sink, all []vip.Service) { out.Delete(keysOf(all)...) }, 0, 0},
		{"three of three, by name", 3, func(out Sink, all []vip.Service) { out.Delete(keysOf(all)...) }, 3, 0},
		{"two of three", 3, func(out Sink, all []vip.Service) { out.Replace(all[2:], nil) }, 1, 1},
		{"half", 100, func(out Sink, all []vip.Service) { out.Replace(all[50:], nil) }, 50, 50},
		{"one more than half", 100, func(out Sink, all []vip.Service) { out.Replace(all[51:], nil) }, 100, 49},
		{"one more than half, by name", 100, func(out Sink, all []vip.Service) { out.Delete(keysOf(all[:51])...) }, 100, 49},
		{"one by one: the first half goes", 100, func(out Sink, all []vip.Service) {
			for _, k := range keysOf(all) {
				out.Delete(k)
			}
		}, 50, 0},
		{"one by one, slowly", 100, func(out Sink, all []vip.Service) {
			for _, k := range keysOf(all) {
				out.Delete(k)
				time.Sleep(20 * time.Second)
			}
		}, 0, 0},
		{"others in their place", 10, func(out Sink, all []vip.Service) { out.Replace(services("x", "y"), nil) }, 12, 2},
	} {
		bubble.Run(t, test.name, func(t *testing.T) {
			b, out, _ := guarded(t, 0)
			out.Replace(numbered(test.had), nil)
			test.remove(out, numbered(test.had))
			expect.Equal(t, b.services.Len(), test.now, "services at first")
			if held := b.held() != ""; held != (test.now != test.then) {
				t.Errorf("reports %q", b.held())
			}
			time.Sleep(DefaultShrinkGuard - time.Millisecond)
			synctest.Wait()
			expect.Equal(t, b.services.Len(), test.now, "services just before the time is over")
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if got := b.services.Len(); got != test.then || b.held() != "" {
				t.Errorf("%d services in the end, not %d; reports %q", got, test.then, b.held())
			}
		})
	}
}

// Services that return are unchanged. The others are removed at the deadline.
func TestWhatVanishedComesBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b, out, _ := guarded(t, 0)
		all := numbered(10)
		out.Replace(all, nil)
		out.Replace(nil, []vip.Problem{{Message: "of the source"}})
		if got := b.status("consul"); !strings.Contains(b.held(), "10 of 10 services disappeared at once (s000, s001, s002, s003, s004 and 5 more)") || len(got.Problems) != 2 || got.Services != 10 {
			t.Errorf("status %+v", got)
		}
		time.Sleep(20 * time.Second)
		out.Put(all[:8]...)
		expect.Contains(t, b.held(), "2 of 10 services disappeared at once (s008, s009)", "reports")
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if b.services.Len() != 8 || b.held() != "" {
			t.Errorf("%d services, reports %q", b.services.Len(), b.held())
		}
		out.Replace(nil, nil)
		out.Replace(all, nil)
		time.Sleep(time.Minute)
		if b.services.Len() != 10 || b.held() != "" {
			t.Errorf("%d services, reports %q", b.services.Len(), b.held())
		}
		expect.SameList(t, b.kinds(), []string{"shrink_held", "shrink_confirmed", "shrink_held", "shrink_withdrawn"}, "events")
	})
}

// A resync confirms what is held back. Later updates are guarded as before. Held services stay held
// while a failed source runs again.
func TestResyncLetsGo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b, out, src := guarded(t, 0)
		out.Replace(numbered(10), nil)
		must.Succeed(t, b.Resync("consul"))
		out = <-src.out
		out.Replace(nil, nil)
		expect.Equal(t, b.services.Len(), 10, "a resync with nothing held is a licence")
		if err := b.Resync("consul"); err != nil || b.services.Len() != 0 || b.held() != "" {
			t.Errorf("%v, %d services, reports %q", err, b.services.Len(), b.held())
		}
		(<-src.out).Replace(nil, nil)
	})
}

// The first list after a start is compared with the earlier services of this host. While it is
// doubted, the dataplane stays unchanged.
func TestTheFirstListAfterAStart(t *testing.T) {
	for _, test := range []struct {
		prior, says int
		ready       bool
	}{{0, 0, true}, {10, 5, true}, {10, 4, false}, {2, 1, true}, {2, 0, false}, {3, 1, true}, {1, 0, false}} {
		bubble.Test(t, func(t *testing.T) {
			b, out, _ := guarded(t, test.prior)
			out.Replace(numbered(test.says), nil)
			if b.ready() != test.ready || b.status("consul").Synced != test.ready || (b.held() == "") != test.ready {
				t.Errorf("%+v: ready %v, reports %q", test, b.ready(), b.held())
			}
			time.Sleep(29 * time.Second)
			synctest.Wait()
			expect.Equal(t, b.ready(), test.ready, "%+v: ready after 29 s", test)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if !b.ready() || !b.status("consul").Synced || b.held() != "" {
				t.Errorf("%+v: in the end ready %v, reports %q", test, b.ready(), b.held())
			}
		})
	}
	bubble.Test(t, func(t *testing.T) {
		b, out, _ := guarded(t, 10)
		out.Replace(nil, nil)
		out.Put(numbered(4)...)
		expect.False(t, b.ready(), "ready with 4 of 10")
		out.Put(numbered(5)...)
		if !b.ready() || b.held() != "" {
			t.Errorf("not ready with 5 of 10, reports %q", b.held())
		}
	})
}

// web returns a service with these backends: "1 2d 3" means 10.0.0.1, 10.0.0.2 draining, 10.0.0.3.
func web(backends string) vip.Service {
	s := service("web")
	for _, word := range strings.Fields(backends) {
		state := vip.Ready
		if n, drained := strings.CutSuffix(word, "d"); drained {
			word, state = n, vip.Drain
		}
		s.Backends = append(s.Backends, vip.Backend{Address: netip.MustParseAddr("10.0.0." + word), Weight: 1, State: state})
	}
	return s
}

func (b *bench) backends() string {
	s, _, _ := b.services.Get(key("web"))
	var out []string
	for _, be := range s.Backends {
		word := be.Address.String()[len("10.0.0."):]
		if be.State == vip.Drain {
			word += "d"
		}
		out = append(out, word)
	}
	return strings.Join(out, " ")
}

func TestBackendsThatVanishTogether(t *testing.T) {
	for _, test := range []struct {
		name, had string
		says      []string
		now, then string
	}{
		{"most of them", "1 2 3 4 5", []string{"1 2"}, "1 2 3 4 5", "1 2"},
		{"half of them", "1 2 3 4 5 6", []string{"1 2 3"}, "1 2 3", "1 2 3"},
		{"all of them", "1 2", []string{""}, "1 2", ""},
		{"the only one", "1", []string{""}, "1", ""},
		{"one of two", "1 2", []string{"1"}, "1", "1"},
		{"two of three, as on any day", "1 2 3", []string{"1"}, "1", "1"},
		{"drained is not vanished", "1 2 3 4 5", []string{"1d 2d 3d 4d 5d"}, "1d 2d 3d 4d 5d", "1d 2d 3d 4d 5d"},
		{"drained before they vanish", "1 2d 3d 4d 5d", []string{"1"}, "1", "1"},
		{"a move", "1 2 3 4 5", []string{"6 7 8 9 10"}, "6 7 8 9 10", "6 7 8 9 10"},
		{"a move to fewer", "1 2 3 4 5", []string{"6 7"}, "1 2 3 4 5 6 7", "6 7"},
		{"in steps", "1 2 3 4 5 6 7 8", []string{"1 2 3 4 5", "1 2 3", "1"}, "1 2 3 4 5", "1"},
		{"back in part", "1 2 3 4 5 6", []string{"1", "1 2d 3"}, "1 2d 3 4 5 6", "1 2d 3"},
		{"back as they were", "1 2 3 4 5 6", []string{"1", "1 2 3 4 5 6"}, "1 2 3 4 5 6", "1 2 3 4 5 6"},
	} {
		bubble.Run(t, test.name, func(t *testing.T) {
			b, out, _ := guarded(t, 0)
			out.Replace([]vip.Service{web(test.had)}, nil)
			for _, says := range test.says {
				out.Put(web(says))
			}
			expect.Equal(t, b.backends(), test.now, "at first")
			if held := strings.HasPrefix(b.held(), "web: "); held != (test.now != test.then) {
				t.Errorf("reports %q", b.held())
			}
			time.Sleep(DefaultShrinkGuard + time.Millisecond)
			synctest.Wait()
			if got := b.backends(); got != test.then || b.held() != "" {
				t.Errorf("%q in the end, not %q; reports %q", got, test.then, b.held())
			}
		})
	}
}

// Held backends keep the weight of their group, and have a group if the service has groups.
func TestGroupsOfHeldBackends(t *testing.T) {
	grouped := func(s vip.Service, group string, groups ...vip.Group) vip.Service {
		s.Groups = groups
		for i := range s.Backends {
			s.Backends[i].Group = group
		}
		return s
	}
	old, current := vip.Group{Name: "old"}, vip.Group{Name: "new", Weight: 5}
	for name, c := range map[string]struct {
		was, is vip.Service
		groups  []vip.Group
		held    string // their group
	}{
		"the group is gone":      {grouped(web("1 2 3 4 5"), "old", old), grouped(web("6"), "new", current), []vip.Group{current, old}, "old"},
		"the group has a weight": {grouped(web("1 2 3 4 5"), "old", vip.Group{Name: "old", Weight: 9}, current), grouped(web("6"), "new", current, old), []vip.Group{current, old}, "old"},
		"groups are new":         {web("1 2 3 4 5"), grouped(web("6"), "new", current), []vip.Group{current}, "new"},
		"groups are gone":        {grouped(web("1 2 3 4 5"), "old", old), web("6"), nil, ""},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			b, out, _ := guarded(t, 0)
			out.Replace([]vip.Service{c.was}, nil)
			out.Put(c.is)
			synctest.Wait()
			row, _, _ := b.services.Get(c.was.Key)
			expect.SameList(t, row.Groups, c.groups, "groups")
			must.Len(t, row.Backends, 6)
			expect.Equal(t, row.Backends[0].Group, c.held, "group of a held backend")
		})
	}
}

// The other fields of a service with held backends follow the source. The service can be removed
// like any other.
func TestAHeldServiceFollows(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b, out, _ := guarded(t, 0)
		out.Replace([]vip.Service{web("1 2 3 4"), service("other"), service("third")}, nil)
		s := web("1")
		s.Pool = "lan"
		out.Put(s)
		if row, _, _ := b.services.Get(key("web")); row.Pool != "lan" || b.backends() != "1 2 3 4" {
			t.Errorf("row %+v", row)
		}
		out.Delete(key("web"))
		if _, _, there := b.services.Get(key("web")); there || b.held() != "" {
			t.Errorf("there %v, reports %q", there, b.held())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		expect.Equal(t, b.rows(), "other=consul third=consul", "rows")
	})
}

// Sources without a ShrinkGuard have no guard.
func TestWithoutAGuard(t *testing.T) {
	driving(t, "static", func(t *testing.T, b *bench, out Sink) {
		out.Replace(numbered(100), nil)
		if out.Replace(nil, nil); b.services.Len() != 0 {
			t.Errorf("%d services", b.services.Len())
		}
	})
}

// Held services add no cost to changes of others. Problems are rebuilt only when the held services
// change.
func TestManyHeldServices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b, out, _ := guarded(t, 0)
		all := numbered(1000)
		out.Replace(all, nil)
		out.Delete(keysOf(all[:900])...)
		before := b.status("consul").Problems
		changed := all[999]
		changed.Pool = "x"
		out.Put(changed)
		now := b.status("consul").Problems
		expect.Equal(t, &now[0], &before[0], "the problems were put together for a service that has none")
	})
}
