//go:build system

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/dnstest"
	"github.com/ironvip/ironvip/test/statecopy"
	"github.com/ironvip/ironvip/vip/spec"
)

// dnsAt is where each agent answers DNS queries, in its own namespace.
const dnsAt = "127.0.0.1:8653"

// namesAsked queries names at one agent all the time.
type namesAsked struct {
	*lab
	at     *agent
	askers map[*dnstest.Asker]string // with the answer of the fleet
	none   *dnstest.Asker            // asks for a name that doesn't exist
}

// asks begins to query names at an agent, when all agents agree on the answers.
func (l *lab) asks(at *agent, names ...string) *namesAsked {
	l.t.Helper()
	n := &namesAsked{lab: l, at: at, askers: map[*dnstest.Asker]string{}}
	for _, name := range names {
		var want string
		l.eventually("all agents answer "+name, func(context.Context) error {
			want = ""
			for _, a := range l.agents {
				got, err := dnstest.Ask(a.node.DialContext, answering, "udp", dnsAt, name, "A")
				if err == nil && (!strings.HasPrefix(got, "NOERROR ") || want != "" && got != want) {
					err = fmt.Errorf("%s, elsewhere %s", got, want)
				}
				if err != nil {
					return fmt.Errorf("%s: %w", a.name, err)
				}
				want = got
			}
			return nil
		})
		n.askers[dnstest.KeepAsking(l.t, at.node.DialContext, dnsAt, name)] = want
	}
	n.none = dnstest.KeepAsking(l.t, at.node.DialContext, dnsAt, "none.vip.internal")
	return n
}

// answered waits until each name was answered again, and checks all answers so far: its own one, or none
// of its own because the agent doesn't know yet.
func (n *namesAsked) answered(when string) {
	n.t.Helper()
	for a, want := range n.askers {
		_, before := a.Answers()
		n.eventually(when+": "+a.Name+" is answered", func(context.Context) error {
			got, err := dnstest.Ask(n.at.node.DialContext, answering, "udp", dnsAt, a.Name, "A")
			if _, all := a.Answers(); err == nil && (got != want || all < before+2) {
				err = fmt.Errorf("%s, %d answers", got, all-before)
			}
			return err
		})
		seen, _ := a.Answers()
		for _, answer := range seen {
			if answer != want && answer != "SERVFAIL" {
				n.t.Errorf("%s: the answers for %s so far are %q, want %s or SERVFAIL", when, a.Name, seen, want)
			}
		}
	}
}

// A member whose store is Consul is killed and started again while its names are queried: also without
// its disk, and while Consul is away. No name of the fleet is ever said not to exist, nor has another
// address.
// Slow: an agent waits 2 s for Consul when it starts, and connects again with a backoff.
func TestNamesOfARestartedMember(t *testing.T) {
	t.Parallel()
	l := newLab(t, shape{servers: 1, agents: 2, catalog: true, reuse: time.Hour, sources: func(*lab) string {
		return fmt.Sprintf("[dns]\nlisten = [%q]\n", dnsAt)
	}})
	consul, a := l.consul[0], l.agents[1]
	_, err := consul.Client.Catalog().Register(&api.CatalogRegistration{Node: "node", Address: "127.1.0.1", Service: &api.AgentService{
		ID: "web", Service: "web", Port: int(target.Port()), Tags: []string{"ironvip"}, Meta: map[string]string{"ironvip-port": "80", "ironvip-hostnames": "shop.example.com"}}}, nil)
	l.must("register web", err)
	_, err = l.agents[0].api.PutService(t.Context(), "default", "api", v1.ServiceSpec{Name: "api", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}, Hostnames: []string{"api.example.com"}}, client.Write{})
	l.must("put api", err)
	n := l.asks(a, "web.vip.internal", "web.default.svc.vip.internal", "shop.example.com", "api.vip.internal", "api.example.com")
	n.answered("at first")

	restart := func() {
		t.Helper()
		a.proc.Kill()
		l.start(a)
	}
	restart()
	n.answered("after a crash")
	l.remembers(a) // it stores the fleet's tree and its sources' services with a delay
	l.eventually(a.name+" has web on its disk", func(context.Context) error {
		return statecopy.Look(filepath.Join(a.dir, "state"), func(db *store.DB) error {
			_, there, err := store.NewBucket[json.RawMessage](db, "cache "+consul.Datacenter).Get("default/web")
			if err == nil && !there {
				err = errors.New("it has not")
			}
			return err
		})
	})
	consul.Kill()
	restart()
	n.answered("while Consul is away")
	a.proc.Kill()
	l.must("remove the state", os.RemoveAll(filepath.Join(a.dir, "state")))
	l.launch(a)
	l.eventually(a.name+" says what it waits for", func(ctx context.Context) error {
		s, err := a.api.Status(ctx)
		if err == nil && !slices.ContainsFunc(s.Checks, func(c v1.Check) bool { return c.Name == "store" && c.Level != v1.LevelOK }) {
			err = fmt.Errorf("%+v", s.Checks)
		}
		return err
	})
	consul.Start()
	consul.For(t).WaitReady()
	l.endSession(a) // of its former run
	l.awaitReady(a)
	n.answered("after a start without disk and Consul")

	n.none.Stop()
	if seen, _ := n.none.Answers(); !slices.Contains(seen, "NXDOMAIN") {
		t.Errorf("the answers for a name that doesn't exist are %q, want NXDOMAIN, too", seen)
	}
}
