package pipeline

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// A change of the scope writes the services that enter or leave it, and no others.
func TestScope(t *testing.T) {
	clock := &table.Clock{}
	services := table.New(clock, vip.KeyOfService, nil)
	in := func(namespace string) Scope { return func(s *vip.Service) bool { return s.Key.Namespace == namespace } }
	r := NewResolve(ResolveOptions{Clock: clock, Services: services, Scope: in("a")})
	claims := r.Claims("files")
	var keys []vip.ServiceKey
	for _, namespace := range []string{"a", "b", "c"} {
		k := vip.ServiceKey{Namespace: namespace, Name: "web"}
		claims.Set(vip.Service{Key: k, Source: "files"})
		keys = append(keys, k)
	}
	r.Changed("files", keys)
	feed := services.Watch()
	defer feed.Close()
	for _, step := range []struct {
		scope         Scope
		written, here string
	}{{in("a"), "abc", "a"}, {in("b"), "ab", "b"}, {in("b"), "", "b"}, {nil, "ac", "abc"}} {
		r.SetScope(step.scope)
		var written []string
		changes, _ := feed.TryNext()
		for _, c := range changes {
			written = append(written, c.Value.Key.Namespace)
		}
		slices.Sort(written)
		here := ""
		for _, k := range keys {
			if s, _, _ := services.Get(k); !s.NotHere {
				here += k.Namespace
			}
		}
		if got := strings.Join(written, ""); got != step.written || here != step.here {
			t.Errorf("wrote %q, serves %q, want %q, %q", got, here, step.written, step.here)
		}
	}
}

// Claims that lost take over in the order in which they lost, whatever they change meanwhile, and
// only the winner's claim wakes the readers of [services].
func TestLosersTakeOverInOrder(t *testing.T) {
	clock := &table.Clock{}
	services := table.New(clock, vip.KeyOfService, nil)
	events := event.NewLog(100, time.Now)
	r := NewResolve(ResolveOptions{Clock: clock, Services: services, Events: events})
	key := vip.ServiceKey{Namespace: "default", Name: "web"}
	claims := map[string]*table.Table[vip.ServiceKey, vip.Service]{}
	for _, source := range []string{"a", "b", "c"} {
		claims[source] = r.Claims(source)
	}
	claim := func(source, pool string) {
		claims[source].Set(vip.Service{Key: key, Source: source, Origin: source + ".toml", Settings: vip.Settings{Pool: pool}})
		r.Changed(source, []vip.ServiceKey{key})
	}
	holder := func() string {
		row, _, _ := services.Get(key)
		return row.Source
	}
	claim("c", "1")
	claim("b", "1")
	claim("a", "1")
	before := services.Revision()
	claim("b", "2")
	if holder() != "c" || services.Revision() != before || r.Conflicts().Len() != 2 {
		t.Errorf("%s has the name, revision %d after %d, %d conflicts", holder(), services.Revision(), before, r.Conflicts().Len())
	}
	if c, _, _ := r.Conflicts().Get(ConflictKey{key, "a"}); c.Problem.Code != vip.CodeNameTaken || c.Problem.Place != "a.toml" || c.Problem.Message != `source "c" holds the name, at c.toml` {
		t.Errorf("problem %+v", c.Problem)
	}
	var order []string
	for _, source := range []string{"c", "b", "a"} {
		order = append(order, holder())
		claims[source].Delete(key)
		r.Changed(source, []vip.ServiceKey{key})
	}
	if got := strings.Join(order, " "); got != "c b a" || services.Len()+r.Conflicts().Len() != 0 {
		t.Errorf("order %q, %d services and %d conflicts are left", got, services.Len(), r.Conflicts().Len())
	}
	var kinds []string
	all, _ := events.Since(0)
	for _, e := range all {
		kinds = append(kinds, e.Kind+" "+e.Object)
	}
	want := []string{"service_name_taken b", "service_name_taken a", "service_name_freed b", "service_name_freed a"}
	expect.SameList(t, kinds, want, "events")
}

// [services] is complete once every source's claims are.
func TestServicesAreReadyWhenAllClaimsAre(t *testing.T) {
	services := table.New(&table.Clock{}, vip.KeyOfService, nil)
	r := NewResolve(ResolveOptions{Services: services})
	var done []func()
	for _, source := range []string{"a", "b"} {
		done = append(done, r.Claims(source).Initializer())
	}
	for i, source := range []string{"a", "b"} {
		expect.False(t, table.IsClosed(services.Ready()), "ready before %s is", source)
		done[i]()
		r.Changed(source, nil)
	}
	expect.True(t, table.IsClosed(services.Ready()), "not ready though all claims are")
}
