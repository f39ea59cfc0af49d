//go:build system

package fleet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip/spec"
)

// checkedBackend is a backend on a host of its own, which can be down.
type checkedBackend struct {
	l    *lab
	node *netlab.Node
	at   netip.AddrPort
	up   net.Listener
}

func (l *lab) addCheckedBackend(name string) *checkedBackend {
	b := &checkedBackend{l: l, node: l.net.AddClient(name)}
	b.at = netip.AddrPortFrom(b.node.Addr4, 9100)
	b.start()
	return b
}

// start accepts connections: the kernel completes them.
func (b *checkedBackend) start() { b.up = b.node.Listen(b.at) }

func (b *checkedBackend) stop() { b.l.must("stop "+b.node.Name, b.up.Close()) }

const checkedService = "checked"

// healthOn returns the health of a backend as an agent shows it.
func healthOn(ctx context.Context, a *agent, b *checkedBackend) (string, error) {
	list, err := a.api.Backends(ctx, "default", checkedService)
	for _, one := range list.Items {
		if one.ID == b.at.String() {
			return one.Health, err
		}
	}
	return "", fmt.Errorf("no backend %s on %s: %w", b.at, a.name, err)
}

// awaitHealth waits until agents show a backend as healthy or unhealthy.
func (l *lab) awaitHealth(b *checkedBackend, health string, agents ...*agent) {
	l.t.Helper()
	for _, a := range agents {
		l.eventually(fmt.Sprintf("%s is %s on %s", b.node.Name, health, a.name), func(ctx context.Context) error {
			got, err := healthOn(ctx, a, b)
			if err == nil && got != health {
				err = fmt.Errorf("it is %s", got)
			}
			return err
		})
	}
}

// Three of four hosts probe the backends for all. The fourth one learns of a failure from the others.
// Slow: a backend is checked every second, and fails after three checks.
func TestHealthOfAgents(t *testing.T) {
	t.Parallel()
	l := newLab(t, shape{servers: 1, agents: 4, reuse: time.Hour, sources: func(*lab) string { return "[health]\nprobers = 3\n" }})
	b := l.addCheckedBackend("checked")
	_, err := l.agents[0].api.PutService(t.Context(), "default", checkedService, v1.ServiceSpec{Name: checkedService, Ports: []spec.Port{{Port: spec.PortRange{First: 80}}},
		Health:   &spec.HealthCheck{Type: "tcp", Interval: new(spec.Duration(time.Second)), FastInterval: new(spec.Duration(100 * time.Millisecond)), Timeout: new(spec.Duration(time.Second))},
		Backends: []spec.Backend{{Address: b.at.Addr().String(), Port: spec.PortNumber(b.at.Port())}}}, client.Write{})
	l.must("register", err)
	l.awaitHealth(b, "healthy", l.agents...)
	b.stop()
	l.awaitHealth(b, "unhealthy", l.agents...)
	b.start()
	l.awaitHealth(b, "healthy", l.agents...)
}
