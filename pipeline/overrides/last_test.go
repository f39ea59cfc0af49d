package overrides

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// serves sets the backends of the web service with ports a and b: "10.0.0.1", "10.0.0.1*0" with
// weight 0, "10.0.0.1=drain" with a state, "10.0.0.1!" unhealthy, "10.0.0.1?a" ejected at a port, "10.0.0.1@a" for a port.
func (h *host) serves(backends ...string) {
	svc := vip.Service{Key: webKey, Ports: []vip.Port{{Name: "a", Port: 80, TargetPort: 8080}, {Name: "b", Port: 81, TargetPort: 8081}}}
	for _, text := range backends {
		b := vip.Backend{Weight: 1}
		if rest, found := strings.CutSuffix(text, "*0"); found {
			text, b.Weight = rest, 0
		}
		if rest, state, found := strings.Cut(text, "="); found {
			text = rest
			must.Succeed(h.t, b.State.UnmarshalText([]byte(state)))
		}
		text, ejected, _ := strings.Cut(text, "?")
		text, unhealthy := strings.CutSuffix(text, "!")
		if unhealthy {
			b.Health = vip.Unhealthy
		}
		text, port, _ := strings.Cut(text, "@")
		if port != "" {
			b.Ports = vip.NamesOf(port)
		}
		b.Address = netip.MustParseAddr(text)
		for i := range svc.Ports {
			if p := &svc.Ports[i]; p.Name == ejected {
				h.passive.Set(vip.PassiveHealth{PassiveKey: vip.PassiveKey{Service: webKey, Protocol: p.Protocol, Addr: b.Endpoint(p.TargetPort)}, Health: vip.Ejected})
			}
		}
		svc.Backends = append(svc.Backends, b)
	}
	h.services.Set(svc)
}

// The last usable backend of a port and family needs force.
func TestLastBackendNeedsForce(t *testing.T) {
	for name, c := range map[string]struct {
		backends string
		set      map[string]vip.State // before
		to       vip.State            // zero: drain
		want     string               // "" if it is permitted
	}{
		"two":                      {backends: "10.0.0.1 10.0.0.2"},
		"alone":                    {backends: "10.0.0.1", want: `10.0.0.1 is the last usable backend of service "web"`},
		"maint":                    {backends: "10.0.0.1", to: vip.Maint, want: `10.0.0.1 is the last usable backend of service "web"`},
		"ready":                    {backends: "10.0.0.1", to: vip.Ready},
		"the other has weight 0":   {backends: "10.0.0.1 10.0.0.2*0", want: `10.0.0.1 is the last usable backend of service "web"`},
		"the other is unhealthy":   {backends: "10.0.0.1 10.0.0.2!", want: `10.0.0.1 is the last usable backend of service "web"`},
		"it is unhealthy":          {backends: "10.0.0.1!"},
		"the other is ejected":     {backends: "10.0.0.1 10.0.0.2?a", want: `10.0.0.1 is the last usable backend of service "web" at port a`},
		"it is ejected":            {backends: "10.0.0.1?a 10.0.0.2"},
		"one of three is ejected":  {backends: "10.0.0.1 10.0.0.2?b 10.0.0.3"},
		"the other drains":         {backends: "10.0.0.1 10.0.0.2=drain", want: `10.0.0.1 is the last usable backend of service "web"`},
		"the other is terminating": {backends: "10.0.0.1 10.0.0.2=terminating"},
		"the other is overridden":  {backends: "10.0.0.1 10.0.0.2", set: map[string]vip.State{"10.0.0.2": vip.Maint}, want: `10.0.0.1 is the last usable backend of service "web"`},
		"the other family":         {backends: "10.0.0.1 2001:db8::1", want: `10.0.0.1 is the last usable backend of service "web"`},
		"one port":                 {backends: "10.0.0.1 10.0.0.2@a", want: `10.0.0.1 is the last usable backend of service "web" at port b`},
		"each port has another":    {backends: "10.0.0.1 10.0.0.2@a 10.0.0.3@b"},
		"it serves another port":   {backends: "10.0.0.1@a 10.0.0.2@b 10.0.0.3@a"},
		"it takes no clients":      {backends: "10.0.0.1*0"},
		"it drains by its source":  {backends: "10.0.0.1=drain"},
		"from drain to maint":      {backends: "10.0.0.1 10.0.0.2", set: map[string]vip.State{"10.0.0.1": vip.Drain}, to: vip.Maint},
		"another was ready again":  {backends: "10.0.0.1 10.0.0.2=ready", set: map[string]vip.State{"10.0.0.2": vip.Drain}, want: `10.0.0.1 is the last usable backend of service "web"`},
		"the same again":           {backends: "10.0.0.1", set: map[string]vip.State{"10.0.0.1": vip.Drain}},
	} {
		t.Run(name, func(t *testing.T) {
			restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
				h, disk := start()
				h.serves(strings.Fields(c.backends)...)
				force := func(address string, to vip.State) {
					r := request(address, to)
					r.Force = true
					must.Get(h.Set(t.Context(), r))(t)
				}
				for address, to := range c.set {
					force(address, to)
				}
				if c.to == 0 {
					c.to = vip.Drain
				}
				before := disk.n()
				_, err := h.Set(t.Context(), request("10.0.0.1", c.to))
				var last *LastBackendError
				switch {
				case c.want == "" && err != nil:
					t.Error(err)
				case c.want != "" && (!errors.As(err, &last) || err.Error() != c.want || disk.n() != before):
					t.Errorf("%v with %d writes, want %q", err, disk.n()-before, c.want)
				}
				force("10.0.0.1", c.to)
			})
		})
	}
}

// Two hosts that drain one of the last two backends each at the same time: one is refused. Neither
// host knows the other's write when it decides.
func TestOneOfTwoHostsDrains(t *testing.T) {
	inFleet(t, func(t *testing.T, m *fleettest.Memory, join func(string) *host) {
		hosts := []*host{join("a"), join("b")}
		both := make(chan struct{})
		var arrived sync.WaitGroup
		arrived.Add(2)
		go func() { arrived.Wait(); close(both) }()
		for _, h := range hosts {
			h.serves("10.0.0.1", "10.0.0.2")
			var once atomic.Bool
			h.tree.Client.Before(func(c fleettest.Call) error {
				for _, op := range c.Ops {
					if op.Verb == kv.Cas && strings.Contains(op.Key, "/tree/"+Folder) && once.CompareAndSwap(false, true) {
						arrived.Done()
						<-both
						return nil
					}
				}
				return nil
			})
		}
		errs := make([]error, 2)
		var setting sync.WaitGroup
		for i, address := range []string{"10.0.0.1", "10.0.0.2"} {
			setting.Go(func() { _, errs[i] = hosts[i].Set(t.Context(), request(address, vip.Drain)) })
		}
		setting.Wait()
		for _, h := range hosts {
			h.tree.Client.Before(nil)
		}
		var last *LastBackendError
		if refused := errors.Join(errs...); (errs[0] == nil) == (errs[1] == nil) || !errors.As(refused, &last) {
			t.Errorf("%v and %v, want one refused", errs[0], errs[1])
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for _, h := range hosts {
			if n := h.table.Len(); n != 1 {
				t.Errorf("%s has %d overrides: %s", h.name, n, h.overridden())
			}
		}
	})
}
