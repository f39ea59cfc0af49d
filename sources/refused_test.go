package sources

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// scripted is a source that does what it receives.
type scripted chan func(out Sink)

func (s scripted) Run(ctx context.Context, out Sink) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case do := <-s:
			do(out)
		}
	}
}

// do makes the source do something, and waits for it.
func (s scripted) do(f func(out Sink)) {
	s <- f
	synctest.Wait()
}

// newRefused returns a bench with a table of refused services, and a function that returns its rows.
func newRefused(t *testing.T) (b *bench, source scripted, refused *table.Table[RefusedKey, Refused]) {
	b, source = newBench(), make(scripted)
	refused = table.New(&table.Clock{}, KeyOfRefused, SameRefused)
	b.options.Refused = refused
	b.Add("files", "static", source)
	b.start(t)
	return b, source, refused
}

// rowsOf returns the rows as "source/service: message message", in order.
func rowsOf(refused *table.Table[RefusedKey, Refused]) string {
	var out []string
	for key, r := range refused.All() {
		var messages []string
		for _, p := range r.Problems {
			messages = append(messages, p.Message)
		}
		out = append(out, fmt.Sprintf("%s/%s: %s", key.Source, key.Service.Name, strings.Join(messages, " ")))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// A service has the problems that name it and those of the whole file that it is from, until the source
// no longer has them. It has them, too, if it comes to the file later, and not after it has left.
func TestRefusedServices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, source, refused := newRefused(t)
		own := vip.Problem{Service: "a", Place: "a.toml:3", Message: "own"}
		unknown := vip.Problem{Service: "new", Place: "a.toml:9", Message: "unknown"}
		whole := vip.Problem{Place: "a.toml:1", Message: "whole"}
		general := vip.Problem{Message: "directory not readable"}
		in := func(name, file string) vip.Service { return vip.Service{Key: key(name), Origin: file + ":1"} }
		for _, step := range []struct {
			do   func(out Sink)
			want string
		}{
			{func(out Sink) { out.Replace([]vip.Service{in("a", "a.toml"), in("b", "b.toml")}, nil) }, ""},
			{func(out Sink) { out.Problems([]vip.Problem{own, general}) }, "files/a: own"},
			{func(out Sink) { out.Problems([]vip.Problem{own, whole, unknown}) }, "files/a: own whole, files/new: unknown"},
			{func(out Sink) { out.Put(in("c", "a.toml")) }, "files/a: own whole, files/c: whole, files/new: unknown"},
			{func(out Sink) { out.Put(in("c", "b.toml")) }, "files/a: own whole, files/new: unknown"},
			{func(out Sink) { out.Put(in("b", "a.toml")); out.Delete(key("a")) }, "files/a: own, files/b: whole, files/new: unknown"},
			{func(out Sink) { out.Replace([]vip.Service{in("b", "a.toml")}, []vip.Problem{whole}) }, "files/b: whole"},
			{func(out Sink) { out.Problems(nil) }, ""},
		} {
			source.do(step.do)
			expect.Equal(t, rowsOf(refused), step.want, "refused")
		}
	})
}

// An update that the shrink guard holds back is a problem of its services.
func TestHeldServicesAreRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench()
		refused := table.New(&table.Clock{}, KeyOfRefused, SameRefused)
		b.options.Refused = refused
		source := make(scripted)
		b.Add("consul", "consul", guardedScript{source})
		b.start(t)
		backends := func(n int) vip.Service {
			s := service("web")
			for i := range n {
				s.Backends = append(s.Backends, vip.Backend{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Weight: 1, State: vip.Ready})
			}
			return s
		}
		source.do(func(out Sink) { out.Replace([]vip.Service{backends(10)}, nil) })
		source.do(func(out Sink) { out.Put(backends(1)) })
		got := rowsOf(refused)
		expect.True(t, strings.HasPrefix(got, "consul/web: "), "refused while backends are held back: %q", got)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		expect.Equal(t, rowsOf(refused), "", "refused afterward")
	})
}

type guardedScript struct{ scripted }

func (guardedScript) ShrinkGuard() time.Duration { return time.Minute }

// A change of one service's problem changes one row of 10,000, and reads no claims.
func TestCostOfRefusedServices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const services = 10_000
		_, source, refused := newRefused(t)
		var all []vip.Service
		var problems []vip.Problem
		for i := range services {
			s := service(fmt.Sprint("s", i))
			all, problems = append(all, s), append(problems, vip.Problem{Service: s.Key.String(), Message: "wrong"})
		}
		source.do(func(out Sink) { out.Replace(all, problems) })
		must.Equal(t, refused.Len(), services, "services refused")
		feed := refused.Watch()
		defer feed.Close()
		changes := func() (n int) {
			for batch, _ := feed.TryNext(); len(batch) > 0; batch, _ = feed.TryNext() {
				n += len(batch)
			}
			return n
		}
		changes()
		source.do(func(out Sink) { out.Problems(problems[1:]) })
		if n := changes(); n != 1 || refused.Len() != services-1 {
			t.Errorf("%d rows changed, %d are left", n, refused.Len())
		}
	})
}
