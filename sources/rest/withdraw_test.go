package rest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// named returns a service with one port and backends.
func named(name string, port int, backends ...string) Put {
	s := web(backends...)
	s.Name, s.Ports = name, []spec.Port{{Name: fmt.Sprint("p", port), Port: spec.PortRange{First: port}, TargetPort: 8080}}
	return Put{Spec: s}
}

// inEffect returns the services of the table, each with its port, backends and their weights.
func (f *fixture) inEffect() string {
	var out []string
	for _, row := range f.services.All() {
		text := fmt.Sprintf("%s:%d", row.Key.Name, row.Ports[0].Port)
		for _, b := range row.Backends {
			text += " " + b.Address.String()
			if b.Weight != 1 {
				text += fmt.Sprint("*", b.Weight)
			}
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// taking lets another source take the names from the next Put on.
func (f *fixture) taking(names ...string) {
	f.sink.holdAside(func(k vip.ServiceKey) bool { return slices.Contains(names, k.Name) })
}

// wantTaken checks that exactly the results of names are refused because another source has them.
// If the apply was atomic, the other results must have no revision.
func wantTaken(t *testing.T, results []Result, err error, atomic bool, names ...string) {
	t.Helper()
	must.Succeed(t, err)
	for _, r := range results {
		owned := (*OwnedError)(nil)
		if taken := slices.Contains(names, r.Key.Name); errors.As(r.Err, &owned) != taken || (r.Action == Refused) != taken {
			t.Errorf("%s is %s: %v", r.Key.Name, r.Action, r.Err)
		} else if !taken && (r.Rev == 0) != atomic && r.Action != Unchanged {
			t.Errorf("%s is %s at revision %d", r.Key.Name, r.Action, r.Rev)
		}
	}
}

// Another source takes a name during an apply. An atomic apply leaves nothing here, on the disk or
// on other hosts. Another apply leaves all other services.
func TestNameTakenDuringAnApply(t *testing.T) {
	before := []Put{named("db", 81, "10.0.0.1"), named("same", 82)}
	puts := []Put{named("web", 80), named("new", 83), named("db", 91, "10.0.0.2"), named("same", 82)}
	const old, done = "db:81 10.0.0.1, same:82", "db:91 10.0.0.2, new:83, same:82"
	for _, c := range []struct {
		taken  string
		atomic bool
		want   string
	}{
		{"web", true, old},
		{"db", true, "same:82"}, // and db from before, held aside
		{"web", false, done},
		{"db", false, "new:83, same:82, web:80"},
	} {
		name := fmt.Sprintf("%s, atomic %v", c.taken, c.atomic)
		t.Run("alone, "+name, func(t *testing.T) {
			f := newFixture(t)
			must.Get(f.src.PutServices(t.Context(), before, true))(t)
			f.taking(c.taken)
			results, err := f.src.PutServices(t.Context(), puts, c.atomic)
			wantTaken(t, results, err, c.atomic, c.taken)
			expect.Equal(t, f.inEffect(), c.want, "there")
			f.restart() // the other source releases the names
			want := c.want
			if c.taken == "db" {
				want = "db:81 10.0.0.1, " + want
			}
			expect.Equal(t, f.inEffect(), want, "after a restart there")
		})
		t.Run("fleet, "+name, func(t *testing.T) {
			a, b := pair(t)
			must.Get(a.src.PutServices(t.Context(), before, true))(t)
			a.taking(c.taken)
			results, err := a.src.PutServices(t.Context(), puts, c.atomic)
			wantTaken(t, results, err, c.atomic, c.taken)
			want := c.want
			if c.taken == "db" { // no source has taken it on b
				want = "db:81 10.0.0.1, " + want
			}
			b.until("it has "+want, func() bool { return b.inEffect() == want })
		})
	}
}

// A service that another host changes between its write and its withdrawal stays as it is then.
func TestWithdrawalKeepsWhatOthersDid(t *testing.T) {
	db := vip.ServiceKey{Namespace: "default", Name: "db"}
	putBackend := func(w spec.Backend) func(*testing.T, *host) {
		return func(t *testing.T, b *host) {
			if _, _, err := b.src.PutBackend(t.Context(), db, w, 0, nil); err != nil {
				t.Error(err)
			}
		}
	}
	for name, c := range map[string]struct {
		meanwhile func(*testing.T, *host)
		want      string
	}{
		"a backend registered": {putBackend(spec.Backend{Address: "10.0.0.3"}), "db:91 10.0.0.1 10.0.0.3"},
		"a weight changed":     {putBackend(spec.Backend{Address: "10.0.0.1", Weight: new(7)}), "db:91 10.0.0.1*7"},
		"a backend removed": {func(t *testing.T, b *host) {
			if _, err := b.src.DeleteBackend(t.Context(), vip.BackendKey{Service: db, Address: bkey("10.0.0.1").Address}, nil); err != nil {
				t.Error(err)
			}
		}, "db:91"},
		"put again": {func(t *testing.T, b *host) { b.put(named("db", 99).Spec) }, "db:99"},
		"deleted": {func(t *testing.T, b *host) {
			if _, err := b.src.DeleteService(t.Context(), db, nil); err != nil {
				t.Error(err)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			a.put(named("db", 81, "10.0.0.1", "10.0.0.2").Spec)
			store, n := a.src.Store, 0
			a.by(func() {
				a.src.Store = afterwards{store, func() {
					if n++; n == 1 {
						b.until("it is there", func() bool { return strings.Contains(b.inEffect(), "db:91") })
						c.meanwhile(t, b)
					}
				}}
			})
			a.taking("web")
			results, err := a.src.PutServices(t.Context(), []Put{named("web", 80), named("db", 91, "10.0.0.1")}, true)
			wantTaken(t, results, err, true, "web")
			for _, h := range []*host{a, b} {
				h.until("it has "+c.want, func() bool { return h.inEffect() == c.want })
			}
		})
	}
}
