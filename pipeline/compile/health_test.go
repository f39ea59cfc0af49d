package compile

import (
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// observed returns the health of backends from texts by the last byte of the address: "unhealthy"
// is a check for all ports, "unhealthy@admin,http" one for some. Several are separated by spaces.
func observed(texts map[byte]string) func(vip.BackendKey) *vip.BackendHealth {
	return func(k vip.BackendKey) *vip.BackendHealth {
		bytes := k.Address.AsSlice()
		text := texts[bytes[len(bytes)-1]]
		if text == "" {
			return nil
		}
		h := &vip.BackendHealth{Backend: k}
		for word := range strings.FieldsSeq(text) {
			health, ports, _ := strings.Cut(word, "@")
			c := vip.CheckResult{Type: vip.CheckTCP, Ports: vip.Names(strings.ReplaceAll(ports, ",", " "))}
			if err := c.Health.UnmarshalText([]byte(health)); err != nil {
				panic(err)
			}
			h.Checks = append(h.Checks, c)
		}
		return h
	}
}

// showReset formats endpoints like short, with "!" after those to reset.
func showReset(backends []vip.Endpoint) string {
	var words []string
	for i := range backends {
		word := short(backends[i : i+1])
		if backends[i].Reset {
			word += "!"
		}
		words = append(words, word)
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, " ")
}

// Each rule for the health of backends has its rows here. want is as in TestChoice.
func TestChoiceByHealth(t *testing.T) {
	two := []vip.Backend{be("10.1.0.1"), be("10.1.0.2")}
	four := append(slices.Clone(two), be("10.1.0.3"), be("10.1.0.4"))
	bad := func(all ...byte) map[byte]string {
		out := map[byte]string{}
		for _, b := range all {
			out[b] = "unhealthy"
		}
		return out
	}
	seen := func(b vip.Backend, h vip.Health) vip.Backend {
		b.Health = h
		return b
	}
	backup := func(b vip.Backend) vip.Backend {
		b.Backup = true
		return b
	}
	for _, tc := range []struct {
		name     string
		backends []vip.Backend
		health   map[byte]string
		panic    uint8
		reset    bool
		local    bool
		zone     bool
		override vip.State // of 10.1.0.1
		want     string
	}{
		// Only unhealthy takes a backend out.
		{name: "healthy, unknown, and nothing known", backends: four[:3], health: map[byte]string{1: "healthy", 2: "unknown"}, want: "1*1 2*1 3*1"},
		{name: "unhealthy", backends: two, health: bad(2), want: "1*1 2*0"},
		{name: "all unhealthy", backends: two, health: bad(1, 2), want: "1*0 2*0"},
		{name: "unhealthy by its source", backends: []vip.Backend{two[0], seen(two[1], vip.Unhealthy)}, want: "1*1 2*0"},
		{name: "either of source and check takes out", backends: []vip.Backend{seen(two[0], vip.Unhealthy), seen(two[1], vip.Healthy)}, health: map[byte]string{1: "healthy", 2: "unhealthy"}, want: "1*0 2*0"},
		{name: "one of several checks fails", backends: two, health: map[byte]string{2: "healthy unhealthy"}, want: "1*1 2*0"},
		{name: "a source that reports healthy without a check", backends: []vip.Backend{seen(two[0], vip.Healthy), two[1]}, want: "1*1 2*1"},

		// Health and state.
		{name: "healthy in drain", backends: []vip.Backend{two[0], be("10.1.0.2", "drain")}, health: map[byte]string{2: "healthy"}, want: "1*1 2*0"},
		{name: "terminating stands in for unhealthy", backends: []vip.Backend{two[0], be("10.1.0.2", "terminating")}, health: bad(1), want: "1*0 2*1"},
		{name: "unhealthy and terminating", backends: []vip.Backend{two[0], be("10.1.0.2", "terminating")}, health: bad(1, 2), want: "1*0 2*0"},
		{name: "an operator's maint of a healthy one", backends: two, health: map[byte]string{1: "healthy"}, override: vip.Maint, want: "1*0 2*1"},
		{name: "an operator's ready of an unhealthy one", backends: []vip.Backend{be("10.1.0.1", "drain"), two[1]}, health: bad(1), override: vip.Ready, want: "1*0 2*1"},

		// Backups serve only in place of all others.
		{name: "a backup waits", backends: []vip.Backend{two[0], backup(two[1])}, want: "1*1 2*0"},
		{name: "a backup serves for an unhealthy one", backends: []vip.Backend{two[0], backup(two[1])}, health: bad(1), want: "1*0 2*1"},
		{name: "a backup serves for one in maint", backends: []vip.Backend{two[0], backup(two[1])}, override: vip.Maint, want: "1*0 2*1"},
		{name: "a backup serves for a weightless one", backends: []vip.Backend{weightless("10.1.0.1"), backup(two[1])}, want: "1*0 2*1"},
		{name: "an unhealthy backup serves nobody", backends: []vip.Backend{two[0], backup(two[1])}, health: bad(1, 2), want: "1*0 2*0"},
		{name: "a terminating one comes before a backup", backends: []vip.Backend{be("10.1.0.1", "terminating"), backup(two[1])}, want: "1*1 2*0"},
		{name: "a ready backup comes before one that terminates", backends: []vip.Backend{backup(be("10.1.0.1", "terminating")), backup(two[1])}, want: "1*0 2*1"},
		{name: "a terminating backup is the last", backends: []vip.Backend{backup(be("10.1.0.1", "terminating")), be("10.1.0.2", "drain")}, want: "1*1 2*0"},
		{name: "only backups", backends: []vip.Backend{backup(two[0]), backup(two[1])}, want: "1*1 2*1"},

		// Panic: with too few healthy ones, all ready ones serve.
		{name: "no panic by default", backends: two, health: bad(1, 2), want: "1*0 2*0"},
		{name: "panic, all unhealthy", backends: two, health: bad(1, 2), panic: 1, want: "1*1 2*1"},
		{name: "panic below the threshold", backends: four, health: bad(1, 2, 3), panic: 26, want: "1*1 2*1 3*1 4*1"},
		{name: "no panic at the threshold", backends: four, health: bad(1, 2, 3), panic: 25, want: "1*0 2*0 3*0 4*1"},
		{name: "panic at the first one", backends: four, health: bad(1), panic: 100, want: "1*1 2*1 3*1 4*1"},
		{name: "drain does not count for panic", backends: []vip.Backend{two[0], be("10.1.0.2", "drain")}, panic: 100, want: "1*1 2*0"},
		{name: "panic spares drain and maint", backends: []vip.Backend{two[0], be("10.1.0.2", "drain")}, health: bad(1, 2), panic: 50, want: "1*1 2*0"},
		{name: "backups do not count for panic", backends: []vip.Backend{two[0], backup(two[1])}, health: bad(1), panic: 50, want: "1*1 2*0"},
		{name: "panic of the source's health", backends: []vip.Backend{seen(two[0], vip.Unhealthy), seen(two[1], vip.Unhealthy)}, panic: 50, want: "1*1 2*1"},

		// Reset removes the open connections of an unhealthy one.
		{name: "reset", backends: two, health: bad(2), reset: true, want: "1*1 2*0!"},
		{name: "reset of what drains", backends: []vip.Backend{two[0], be("10.1.0.2", "drain")}, health: bad(2), reset: true, want: "1*1 2*0!"},
		{name: "no reset in panic", backends: two, health: bad(1, 2), panic: 50, reset: true, want: "1*1 2*1"},
		{name: "reset of all", backends: two, health: bad(1, 2), reset: true, want: "1*0! 2*0!"},

		// Policies come first: an unhealthy backend here is no reason to leave this node.
		{name: "local to an unhealthy one here", backends: []vip.Backend{be("10.1.0.1", "ready", "n1"), be("10.1.0.2", "ready", "n2")}, health: bad(1), local: true, want: "1*0"},
		{name: "local panic counts those here only", backends: []vip.Backend{be("10.1.0.1", "ready", "n1"), be("10.1.0.2", "ready", "n2")}, health: bad(2), local: true, panic: 100, want: "1*1"},
		{name: "the zone's are unhealthy: use all", backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2", "ready", "-", "zb")}, health: bad(1), zone: true, want: "1*0 2*1"},
		{name: "an unhealthy one without a zone does not matter", backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2", "ready", "-", "zb"), be("10.1.0.3")}, health: bad(3), zone: true, want: "1*1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := service(func(s *vip.Service) {
				s.Backends, s.PanicThreshold, s.ResetUnhealthy = tc.backends, tc.panic, tc.reset
				if tc.local {
					s.ExternalTraffic, s.InternalTraffic = vip.Local, vip.Local
				}
				if tc.zone {
					s.Distribution = vip.PreferSameZone
				}
			})
			in := input(s, "192.0.2.10")
			in.Node, in.Health = here(), observed(tc.health)
			if tc.override != 0 {
				in.Override = func(k vip.BackendKey) (vip.State, bool) { return tc.override, k.Address == addr("10.1.0.1") }
			}
			got, problems := Service(in)
			if len(problems) > 0 || len(got) != 1 {
				t.Fatal(got, problems)
			}
			expect.Equal(t, showReset(got[0].Backends), tc.want)
			if want := tc.panic > 0 && in.Panics(vip.IPv4, "http"); want && strings.Contains(tc.want, "!") {
				t.Error("a reset in panic")
			}
		})
	}
}

// A check of one port takes a backend out at that port only.
func TestHealthByPort(t *testing.T) {
	for _, tc := range []struct {
		name   string
		health map[byte]string
		ports  vip.Names // that 10.1.0.2 serves
		panic  uint8
		want   []string // of port http, and of port admin
	}{
		{name: "at one port", health: map[byte]string{1: "healthy@http unhealthy@admin"}, want: []string{"1*1 2*1", "1*0 2*1"}},
		{name: "each at another port", health: map[byte]string{1: "unhealthy@admin healthy@http", 2: "healthy@admin unhealthy@http"}, want: []string{"1*1 2*0", "1*0 2*1"}},
		{name: "both at one port", health: map[byte]string{1: "unhealthy@admin", 2: "unhealthy@admin"}, want: []string{"1*1 2*1", "1*0 2*0"}},
		{name: "at all ports", health: map[byte]string{1: "unhealthy"}, want: []string{"1*0 2*1", "1*0 2*1"}},
		{name: "at two ports named", health: map[byte]string{1: "unhealthy@admin,http"}, want: []string{"1*0 2*1", "1*0 2*1"}},
		{name: "the other serves one port", health: map[byte]string{1: "unhealthy"}, ports: "http", want: []string{"1*0 2*1", "1*0"}},
		{name: "panic of one port", health: map[byte]string{1: "unhealthy@admin", 2: "unhealthy@admin"}, panic: 50, want: []string{"1*1 2*1", "1*1 2*1"}},
		{name: "half of one port is no panic", health: map[byte]string{1: "unhealthy@admin"}, panic: 50, want: []string{"1*1 2*1", "1*0 2*1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := service(func(s *vip.Service) {
				s.Ports = []vip.Port{{Name: "http", Protocol: vip.TCP, Port: 80, TargetPort: 80}, {Name: "admin", Protocol: vip.TCP, Port: 90, TargetPort: 90}}
				s.Backends, s.PanicThreshold = []vip.Backend{be("10.1.0.1"), be("10.1.0.2")}, tc.panic
				s.Backends[1].Ports = tc.ports
			})
			in := input(s, "192.0.2.10")
			in.Health = observed(tc.health)
			got, _ := Service(in)
			var have []string
			for _, f := range got {
				have = append(have, short(f.Backends))
			}
			expect.NoDiff(t, gocmp.Diff(tc.want, have))
		})
	}
}

// UDP clients leave an unhealthy backend at once, as one that drains, and a backup that waits is
// not listed.
func TestHealthOfUDP(t *testing.T) {
	s := service(func(s *vip.Service) {
		s.Ports[0].Protocol = vip.UDP
		s.Backends = []vip.Backend{be("10.1.0.1"), be("10.1.0.2"), be("10.1.0.3")}
		s.Backends[2].Backup = true
	})
	for want, health := range map[string]map[byte]string{"1*1 2*1": nil, "1*1": {2: "unhealthy"}, "3*1": {1: "unhealthy", 2: "unhealthy"}, "none": {1: "unhealthy", 2: "unhealthy", 3: "unhealthy"}} {
		in := input(s, "192.0.2.10")
		in.Health = observed(health)
		got, _ := Service(in)
		expect.Equal(t, short(got[0].Backends), want, health)
	}
}

// An unhealthy source decides, else an unhealthy check, else an unknown one. Connections of clients are evidence after
// the checks and the source, and for a backend without them. They never change where the compile stage sends clients.
func TestObserved(t *testing.T) {
	for _, tc := range []struct {
		source vip.Health
		checks string
		a, b   vip.Health // of the ports, by connections
		want   vip.Health
		by     int // the index of the check that decided; -1: none
	}{
		{0, "", 0, 0, vip.Unchecked, -1},
		{vip.Healthy, "", 0, 0, vip.Healthy, -1},
		{vip.Unhealthy, "", 0, 0, vip.Unhealthy, -1},
		{vip.Unhealthy, "healthy", 0, 0, vip.Unhealthy, -1},
		{vip.Healthy, "unhealthy", 0, 0, vip.Unhealthy, 0},
		{vip.Healthy, "unknown", 0, 0, vip.Unknown, 0},
		{0, "healthy@a unhealthy@b", 0, 0, vip.Unhealthy, 1},
		{0, "unknown@a unhealthy@b", 0, 0, vip.Unhealthy, 1},
		{0, "healthy@a unknown@b", 0, 0, vip.Unknown, 1},
		{0, "healthy@a healthy@b", 0, 0, vip.Healthy, 0},
		{0, "", vip.Healthy, 0, vip.Healthy, -1},
		{0, "", 0, vip.Healthy, vip.Healthy, -1},
		{0, "", vip.Healthy, vip.Ejected, vip.Ejected, -1},
		{0, "healthy", vip.Ejected, 0, vip.Ejected, -1},
		{0, "unknown", vip.Ejected, 0, vip.Ejected, -1},
		{0, "unknown", vip.Healthy, 0, vip.Unknown, 0},
		{0, "healthy", vip.Healthy, 0, vip.Healthy, 0},
		{0, "unhealthy", vip.Ejected, 0, vip.Unhealthy, 0},
		{vip.Unhealthy, "", vip.Ejected, 0, vip.Unhealthy, -1},
		{vip.Healthy, "", vip.Ejected, 0, vip.Ejected, -1},
	} {
		s := service(func(s *vip.Service) {
			s.Ports = []vip.Port{{Name: "a", Protocol: vip.TCP, Port: 80, TargetPort: 8080}, {Name: "b", Protocol: vip.UDP, Port: 53, TargetPort: 53}}
			s.Backends = []vip.Backend{be("10.1.0.1")}
		})
		s.Backends[0].Health = tc.source
		row := observed(map[byte]string{1: tc.checks})(s.Backends[0].Key(s.Key))
		v := View{Service: &s, Health: func(vip.BackendKey) *vip.BackendHealth { return row }}
		usable := v.Usable(&s.Backends[0])
		v.Passive = func(k vip.PassiveKey) *vip.PassiveHealth {
			health := tc.a
			if k.Protocol == vip.UDP {
				health = tc.b
			}
			if want := (vip.PassiveKey{Service: s.Key, Protocol: k.Protocol, Addr: s.Backends[0].Endpoint(map[vip.Protocol]uint16{vip.TCP: 8080, vip.UDP: 53}[k.Protocol])}); k != want {
				t.Errorf("asked for %v", k)
			}
			if health == 0 {
				return nil
			}
			return &vip.PassiveHealth{PassiveKey: k, Health: health}
		}
		if tc.a == 0 && tc.b == 0 {
			v.Passive = nil // as with a dataplane in the kernel
		}
		by := -1
		health, check := v.Observed(&s.Backends[0])
		if check != nil && row != nil {
			by = slices.Index(row.Checks, *check)
		}
		if health != tc.want || by != tc.by {
			t.Errorf("%+v: %s by check %d", tc, health, by)
		}
		expect.Equal(t, v.Usable(&s.Backends[0]), usable, "%+v: usable depends on connections", tc)
	}
}
