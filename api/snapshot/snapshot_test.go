package snapshot

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

var noon = time.Date(2026, 11, 8, 12, 0, 0, 0, time.UTC)

func key(name string) vip.ServiceKey { return vip.ServiceKey{Namespace: "default", Name: name} }

func addr(s string) ipam.Resource { return ipam.Resource{Addr: netip.MustParseAddr(s)} }

// lease returns a lease that services hold.
func lease(r ipam.Resource, services ...string) ipam.Lease {
	l := ipam.Lease{Resource: r, Pool: "main", State: ipam.Held, Since: vip.InstantOf(noon.Add(-time.Hour))}
	for i, s := range services {
		h := ipam.Holder{Service: key(s), Source: "static"}
		if len(services) > 1 || strings.HasPrefix(s, "shared") {
			l.ShareKey = "edge"
			h.Ports = []vip.PortKey{{Port: uint16(1000 + i + 10*len(s)), Protocol: vip.TCP}}
		}
		l.Holders = append(l.Holders, h)
	}
	return l
}

func cooling(r ipam.Resource, service string, until time.Time) ipam.Lease {
	l := lease(r, service)
	l.State, l.Until = ipam.Cooling, vip.InstantOf(until)
	return l
}

// reserved returns a lease that nobody holds; "" is for nobody.
func reserved(r ipam.Resource, service string) ipam.Lease {
	l := lease(r)
	if service != "" {
		l = lease(r, service)
	}
	l.State = ipam.Reserved
	return marked(l, service)
}

// marked returns a lease with a reservation.
func marked(l ipam.Lease, service string) ipam.Lease {
	l.Reservation = &ipam.Reservation{Since: l.Since}
	if service != "" {
		l.Reservation.For = key(service)
	}
	return l
}

func leases(all ...ipam.Lease) map[ipam.Resource]ipam.Lease {
	out := map[ipam.Resource]ipam.Lease{}
	for _, l := range all {
		out[l.Resource] = l
	}
	return out
}

func record(t *testing.T, name string, port int) rest.Record {
	t.Helper()
	w := spec.Service{Name: name, Ports: []spec.Port{{Port: spec.PortRange{First: port}}}, Backends: []spec.Backend{{Address: "10.1.0.1"}}}
	row, problems := w.Build(rest.Type, "")
	must.Empty(t, problems)
	return rest.Record{Spec: spec.FromService(row), Registered: map[string]spec.Duration{"10.1.0.1": spec.Duration(10 * time.Second)}}
}

// bench is a set of stores, in memory and on disk.
type bench struct {
	t  *testing.T
	db *store.DB
	Stores
}

func newBench(t *testing.T, node string) *bench {
	t.Helper()
	db := must.Get(store.Open(filepath.Join(t.TempDir(), "ironvip.db")))(t)
	t.Cleanup(func() { _ = db.Close() })
	b := &bench{t: t, db: db, Stores: Stores{Leases: memstore.New(), Node: node}}
	b.reopen()
	return b
}

func (b *bench) reopen() {
	b.t.Helper()
	services := must.Get(registry.NewLocal(store.NewBucket[rest.Record](b.db, "rest")))(b.t)
	states := must.Get(registry.NewLocal(store.NewBucket[overrides.Override](b.db, "states")))(b.t)
	b.Services, b.States = services, states
}

func (b *bench) contents() Contents {
	b.t.Helper()
	b.reopen()
	c := must.Get(ContentsOf(b.t.Context(), b.Stores))(b.t)
	return c
}

func (b *bench) put(all ...ipam.Lease) {
	b.t.Helper()
	var ops []ipam.Op
	for _, l := range all {
		ops = append(ops, ipam.Op{New: &l})
	}
	must.Succeed(b.t, b.Leases.Commit(b.t.Context(), ops))
	for _, op := range ops {
		must.Succeed(b.t, op.Err)
	}
}

func said(r Result) []string {
	var out []string
	for _, c := range r.Conflicts {
		out = append(out, c.String())
	}
	return out
}

// A restore into an empty store reads what a save wrote, and a save of that store gives the same
// document.
func TestThereAndBack(t *testing.T) {
	port := ipam.Resource{NodePort: 30080, Protocol: vip.TCP}
	nodePort := lease(port, "web")
	nodePort.Pool, nodePort.Holders[0].Port = "", vip.PortKey{Port: 80, Protocol: vip.TCP}
	in := Contents{
		Leases: leases(lease(addr("192.0.2.1"), "web"), lease(addr("2001:db8::1"), "web"), nodePort, lease(addr("192.0.2.2"), "shared-a", "shared-b", "shared-c2"),
			cooling(addr("192.0.2.3"), "gone", noon.Add(time.Minute)), cooling(addr("192.0.2.4"), "long-gone", noon)),
		Services: map[string]rest.Record{"default/web": record(t, "web", 80), "default/db": record(t, "db", 5432)},
		States:   map[string]overrides.Override{"default/web/10.1.0.1": {State: "drain", Since: noon}},
	}
	fleet, back := newBench(t, "lb1"), newBench(t, "")
	for _, to := range []*bench{fleet, back} {
		text := must.Get(json.Marshal(NewDocument(in)))(t)
		read, problems := Read(text)
		must.Empty(t, problems)
		want := Result{Leases: 5, Services: 2, States: 1, Ended: 1, Conflicts: []Conflict{}}
		if to == back {
			want.Ended = 0
		}
		if got := Compare(read, to.contents(), to.Node, noon); !cmp.Equal(got, want) {
			t.Errorf("preview: %s", cmp.Diff(want, got))
		}
		if got, err := Restore(t.Context(), read, to.contents(), to.Stores, false, noon); err != nil || !cmp.Equal(got, want) {
			t.Fatalf("%v %s", err, cmp.Diff(want, got))
		}
		// A second restore changes nothing.
		if got, err := Restore(t.Context(), read, to.contents(), to.Stores, false, noon); err != nil || got.Leases+got.Services+got.States+len(got.Conflicts) != 0 || got.Same != 8 {
			t.Errorf("again: %v %+v", err, got)
		}
		in = to.contents()
	}
	shared := fleet.contents()
	if r := shared.Services["default/web"]; r.Node != "lb1" || r.Stated == nil || r.HeartbeatOwners["10.1.0.1"] != "lb1" {
		t.Errorf("in a fleet a registration is nobody's: %+v", r)
	}
	if l := shared.Leases[addr("192.0.2.2")]; len(l.Holders) != 3 || l.Holders[2].Node != "lb1" {
		t.Errorf("%+v", l)
	}
	if r := in.Services["default/web"]; r.Node != "" || r.Stated != nil || r.HeartbeatOwners != nil || in.Leases[addr("192.0.2.1")].Holders[0].Node != "" {
		t.Errorf("on one host's disk the fleet is left: %+v", r)
	}
}

func TestClashes(t *testing.T) {
	for _, c := range []struct {
		what      string
		there, in []ipam.Lease
		want      []string
		leases    int // leases written with skip
	}{
		{"the address is another's", []ipam.Lease{lease(addr("192.0.2.1"), "api")}, []ipam.Lease{lease(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: the store has it for api"}, 0},
		{"the service has another address", []ipam.Lease{lease(addr("192.0.2.7"), "web")}, []ipam.Lease{lease(addr("192.0.2.1"), "web"), lease(addr("192.0.2.2"), "db")},
			[]string{"lease 192.0.2.1 of web: in the store, web holds 192.0.2.7"}, 1},
		{"the service has some of its addresses", []ipam.Lease{lease(addr("192.0.2.1"), "web")}, []ipam.Lease{lease(addr("192.0.2.1"), "web"), lease(addr("2001:db8::1"), "web")}, nil, 1},
		{"it cools down after another", []ipam.Lease{cooling(addr("192.0.2.1"), "api", noon.Add(time.Minute))}, []ipam.Lease{lease(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: in the store it cools down until 2026-11-08T12:01:00Z, after api"}, 0},
		{"it cools down after the same", []ipam.Lease{cooling(addr("192.0.2.1"), "web", noon.Add(time.Minute))}, []ipam.Lease{lease(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: in the store it cools down until 2026-11-08T12:01:00Z, after web"}, 0},
		{"it cools down in the file", []ipam.Lease{lease(addr("192.0.2.1"), "api")}, []ipam.Lease{cooling(addr("192.0.2.1"), "web", noon.Add(time.Minute))}, nil, 0},
		{"shared with more", []ipam.Lease{lease(addr("192.0.2.1"), "shared-a")}, []ipam.Lease{lease(addr("192.0.2.1"), "shared-a", "shared-bb")},
			[]string{"lease 192.0.2.1 of shared-a, shared-bb: the store has it for shared-a"}, 0},
		{"shared, on the same port", []ipam.Lease{lease(addr("192.0.2.1"), "shared-a")}, []ipam.Lease{lease(addr("192.0.2.1"), "shared-b")},
			[]string{"lease 192.0.2.1 of shared-b: the store has it for shared-a"}, 0},
		{"not shared there", []ipam.Lease{lease(addr("192.0.2.1"), "a")}, []ipam.Lease{lease(addr("192.0.2.1"), "shared-b")},
			[]string{"lease 192.0.2.1 of shared-b: the store has it for a"}, 0},
		{"reserved", nil, []ipam.Lease{reserved(addr("192.0.2.1"), "web"), reserved(addr("192.0.2.2"), "")}, nil, 2},
		{"reserved for the same", []ipam.Lease{reserved(addr("192.0.2.1"), "web")}, []ipam.Lease{reserved(addr("192.0.2.1"), "web")}, nil, 0},
		{"reserved for others", []ipam.Lease{reserved(addr("192.0.2.1"), "web"), reserved(addr("192.0.2.2"), "")}, []ipam.Lease{reserved(addr("192.0.2.1"), "api"), reserved(addr("192.0.2.2"), "api"), reserved(addr("192.0.2.3"), "")},
			[]string{"lease 192.0.2.1 of api: in the store it is reserved for web", "lease 192.0.2.2 of api: in the store it is reserved"}, 1},
		{"reserved, and held there by the same", []ipam.Lease{lease(addr("192.0.2.1"), "web")}, []ipam.Lease{reserved(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: the store has it for web"}, 0},
		{"reserved, and held there by another", []ipam.Lease{lease(addr("192.0.2.1"), "api")}, []ipam.Lease{reserved(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: the store has it for api"}, 0},
		{"reserved for nobody, and held there", []ipam.Lease{lease(addr("192.0.2.1"), "api")}, []ipam.Lease{reserved(addr("192.0.2.1"), "")},
			[]string{"lease 192.0.2.1: the store has it for api"}, 0},
		{"reserved for nobody, and held and reserved there", []ipam.Lease{marked(lease(addr("192.0.2.1"), "api"), "")}, []ipam.Lease{reserved(addr("192.0.2.1"), "")},
			[]string{"lease 192.0.2.1: the store has it for api, reserved"}, 0},
		{"held, and reserved there for the same", []ipam.Lease{reserved(addr("192.0.2.1"), "web")}, []ipam.Lease{lease(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: in the store it is reserved for web"}, 0},
		{"held, and reserved there for another", []ipam.Lease{reserved(addr("192.0.2.1"), "api")}, []ipam.Lease{lease(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: in the store it is reserved for api"}, 0},
		{"held, and reserved there for nobody", []ipam.Lease{reserved(addr("192.0.2.1"), "")}, []ipam.Lease{lease(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: in the store it is reserved"}, 0},
		{"held and reserved, and held there", []ipam.Lease{lease(addr("192.0.2.1"), "web")}, []ipam.Lease{marked(lease(addr("192.0.2.1"), "web"), "web")},
			[]string{"lease 192.0.2.1 of web: the store has it for web"}, 0},
		{"held and reserved in both", []ipam.Lease{marked(lease(addr("192.0.2.1"), "web"), "web")}, []ipam.Lease{marked(lease(addr("192.0.2.1"), "web"), "web")}, nil, 0},
		{"held, and reserved for others", []ipam.Lease{marked(lease(addr("192.0.2.1"), "web"), "web")}, []ipam.Lease{marked(lease(addr("192.0.2.1"), "web"), "")},
			[]string{"lease 192.0.2.1 of web: the store has it for web, reserved"}, 0},
		{"reserved, and it cools down for another", []ipam.Lease{cooling(addr("192.0.2.1"), "api", noon.Add(time.Minute))}, []ipam.Lease{reserved(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: in the store it cools down until 2026-11-08T12:01:00Z, after api"}, 0},
		{"reserved, and it cools down for the same", []ipam.Lease{cooling(addr("192.0.2.1"), "web", noon.Add(time.Minute))}, []ipam.Lease{reserved(addr("192.0.2.1"), "web")},
			[]string{"lease 192.0.2.1 of web: in the store it cools down until 2026-11-08T12:01:00Z, after web"}, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			b := newBench(t, "lb2")
			b.put(c.there...)
			before := b.contents()
			in := Contents{Leases: leases(c.in...)}
			got, err := Restore(t.Context(), in, before, b.Stores, false, noon)
			if err != nil || !slices.Equal(said(got), c.want) {
				t.Errorf("%v, clashes %q, want %q", err, said(got), c.want)
			}
			if len(c.want) > 0 && !cmp.Equal(before.Leases, b.contents().Leases, cmp.Comparer(ipam.Lease.Equal)) {
				t.Error("something was written all the same")
			}
			if len(c.want) > 0 {
				if got, err = Restore(t.Context(), in, before, b.Stores, true, noon); err != nil || got.Leases != c.leases || !slices.Equal(said(got), c.want) {
					t.Errorf("with skip: %v %+v", err, got)
				}
			} else if got.Leases != c.leases {
				t.Errorf("wrote %d leases, want %d", got.Leases, c.leases)
			}
			held := map[string]int{}
			for r, l := range b.contents().Leases {
				if was := in.Leases[r].Reservation; len(c.want) == 0 && was != nil && (l.Reservation == nil || l.Reservation.For != was.For) {
					t.Errorf("%s has lost its reservation: %+v", r, l)
				}
				if text, err := json.Marshal(l); err != nil || json.Unmarshal(text, new(ipam.Lease)) != nil {
					t.Errorf("%s can't be stored: %s, %v", r, text, err)
				}
				for _, h := range l.Holders {
					if l.State == ipam.Held {
						held[fmt.Sprint(h.Service, l.Resource.Addr.Is4())]++
					}
				}
			}
			for s, n := range held {
				expect.AtMost(t, n, 1, "%s holds %d addresses of a family", s, n)
			}
		})
	}
}

func TestRegistrationsAndStatesClash(t *testing.T) {
	b := newBench(t, "lb2")
	other := record(t, "web", 81)
	other.Node = "lb3"
	state := func(s string) map[string]overrides.Override {
		return map[string]overrides.Override{"default/web/10.1.0.1": {State: s, Since: noon}}
	}
	if _, err := Restore(t.Context(), Contents{Services: map[string]rest.Record{"default/web": other}, States: state("maint")}, Contents{}, b.Stores, false, noon); err != nil {
		t.Fatal(err)
	}
	in := Contents{Services: map[string]rest.Record{"default/web": record(t, "web", 80), "default/api": record(t, "api", 80)}, States: state("drain")}
	got, err := Restore(t.Context(), in, b.contents(), b.Stores, false, noon)
	want := []string{"registration web: the store has another service of this name, through node lb2", "state web/10.1.0.1: drain in the file, maint in the store"}
	if err != nil || !slices.Equal(said(got), want) || len(b.contents().Services) != 1 {
		t.Errorf("%v %q", err, said(got))
	}
	// A value that another writer wrote after the comparison is reported and not overwritten.
	got, err = Restore(t.Context(), in, Contents{}, b.Stores, false, noon)
	if err != nil || got.Services != 1 || len(got.Conflicts) != 2 || b.contents().Services["default/web"].Spec.Ports[0].Port.First != 81 {
		t.Errorf("%v %+v", err, got)
	}
}

func TestEmpty(t *testing.T) {
	b := newBench(t, "")
	in := Contents{Leases: leases(lease(addr("192.0.2.1"), "web")), Services: map[string]rest.Record{"default/web": record(t, "web", 80)},
		States: map[string]overrides.Override{"default/web/10.1.0.1": {State: "drain", Since: noon}, "default/web/canary": {Weight: new(uint32(5)), Since: noon}}}
	must.Get(Restore(t.Context(), in, Contents{}, b.Stores, false, noon))(t)
	if err := Empty(t.Context(), b.contents(), b.Stores); err != nil || !b.contents().Empty() {
		t.Errorf("%v %+v", err, b.contents())
	}
}

func TestReadNamesWhatIsWrong(t *testing.T) {
	head := `{"format":"` + Format + `",`
	for text, want := range map[string][]string{
		"":                              {"not a snapshot: unexpected end of JSON input"},
		"{\n\n\"format\": x}":           {"not a snapshot: line 3: invalid character 'x' looking for beginning of value"},
		`{}`:                            {`format: is "", not "` + Format + `"`},
		`{"format":"ironvip/export/2"}`: {`format: is "ironvip/export/2", not "` + Format + `"`},
		head + `"leases":[{"resource":"192.0.2.1","state":"held","holders":[]},{"resource":"x"}]}`: {
			"leases[0]: lease of 192.0.2.1: it has no holder", `leases[1]: lease: "x" is not an address`},
		head + `"leases":[{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/b","source":"s"}]},{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/c","source":"s"}]}]}`: {
			"leases[1]: 192.0.2.1 is defined twice"},
		head + `"services":{"default/web":{"spec":{"name":"web"}},"default/x":{"spec":{"name":"y","ports":[{"port":80}]}},"default/z":{"speck":1}}}`: {
			`service "default/web": ports: `, `service "default/x": services["default/x"]: is the service "default/y"`, `service "default/z": services["default/z"]: json: unknown field "speck"`},
		head + `"states":{"default/web":{"state":"drain"},"default/web/x":{"state":"drain"},"default/web/y":{"weight":65535},"default/web/10.1.0.1":{"state":"ready"}}}`: {
			`states["default/web"]: key "default/web" names no backend`, `states["default/web/10.1.0.1"]: invalid state "ready": must be drain or maint`, `states["default/web/x"]: `},
	} {
		c, problems := Read([]byte(text))
		expect.True(t, c.Empty(), "%s: there are contents", text)
		for i, p := range problems {
			if i >= len(want) || !strings.HasPrefix(p.Error(), want[i]) {
				t.Errorf("%s: %s", text, p.Error())
			}
		}
		expect.Len(t, problems, len(want), "%s: %d problems", text, len(problems))
	}
}

func FuzzRead(f *testing.F) {
	text, _ := json.Marshal(NewDocument(Contents{Leases: leases(lease(addr("192.0.2.1"), "web"))}))
	f.Add(text)
	f.Add([]byte(`{"format":"` + Format + `","services":{"a/b":{"spec":{}}},"states":{"a/b/c":{}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, problems := Read(data)
		if len(problems) > 0 {
			return
		}
		again := must.Get(json.Marshal(NewDocument(c)))(t)
		if _, problems = Read(again); len(problems) > 0 {
			t.Errorf("what was read is written as %s: %v", again, problems)
		}
	})
}

// A snapshot of a host has the overrides that wait on it for their merge with the fleet's store. As in
// a merge, the later decision wins, also if it ends an override.
func TestPendingOverridesAreSaved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		db, err := store.Open(filepath.Join(t.TempDir(), "ironvip.db"))
		must.Succeed(t, err)
		defer db.Close()
		at := func(minute int, state string) overrides.Override {
			return overrides.Override{State: state, Since: noon.Add(time.Duration(minute) * time.Minute), Node: "lb9"}
		}
		const prefix = "default/db/10.1.0."
		there := map[string]overrides.Override{"1": at(0, "drain"), "2": at(0, "drain"), "3": at(9, "maint"), "4": at(0, "maint")}
		pending := map[string]overrides.Override{"2": at(5, "ready"), "3": at(5, "drain"), "4": at(5, "drain"), "5": at(5, "maint"), "6": at(5, "ready")}
		want := map[string]overrides.Override{prefix + "1": there["1"], prefix + "3": there["3"], prefix + "4": pending["4"], prefix + "5": pending["5"]}

		from := fleetStores(t, fleettest.NewMemory())
		var batches []*registry.Batch[overrides.Override]
		for key, value := range there {
			batches = append(batches, &registry.Batch[overrides.Override]{Edits: []registry.Edit[overrides.Override]{{Key: prefix + key, Value: &value}}})
		}
		must.Succeed(t, from.States.Commit(t.Context(), batches))
		for _, b := range batches {
			must.Succeed(t, b.Err)
		}
		bucket := store.NewBucket[overrides.Override](db, "pending")
		for key, value := range pending {
			must.Succeed(t, bucket.Put(prefix+key, value))
		}
		if from.Pending, err = registry.NewJournal(from.States, bucket); err != nil {
			t.Fatal(err)
		}
		expect.NoDiff(t, cmp.Diff(want, NewDocument(contentsOf(t, from)).States), "saved")
		n := len(from.Pending.Pending())
		expect.Equal(t, n, len(pending), "%d of %d overrides still wait", n, len(pending))
	})
}
