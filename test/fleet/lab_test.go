//go:build system

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// lab is some agents and one or three servers of Consul or etcd, each in its own namespace, with a
// router between them.
type lab struct {
	t       testing.TB // of the running scenario
	net     *netlab.Lab
	store   *storage
	consul  []*consultest.Server // the servers of the store, if it is Consul
	agents  []*agent
	shape   shape
	sources string // appended to the configuration of each agent

	scenarios, ran int // the number of scenarios, and the number of those that ran

	*recorder // nil in a benchmark
}

// shape is the configuration of a lab.
type shape struct {
	agents  int            // 3 by default
	servers int            // 1 or 3
	etcd    bool           // the store is etcd, otherwise Consul
	catalog bool           // the agents follow Consul's catalog
	reuse   time.Duration  // the cooldown of released addresses
	pool    netip.Prefix   // 127.96.0.0/20 by default
	consul  map[string]any // further settings of Consul
	// sources, if not nil, starts what the agents follow before they start, and returns the
	// configuration of these sources.
	sources func(*lab) string
}

// agent is one host of the fleet.
type agent struct {
	name string
	node *netlab.Node
	dir  string
	proc *process.Process
	api  *client.Client
	kv   *api.KV      // of a benchmark
	runs atomic.Int64 // number of starts
}

// target is the backend of all services. It is on every host's own loopback and answers with the
// host's name.
var target = netip.MustParseAddrPort("127.0.0.1:9000")

// Every host reaches a Consul cluster through its own small proxy, which uses the next server if
// one is down, as local Consul agents do.
const localConsul = "127.0.0.1:8500"

// answering bounds one request to an agent, like users' clients. Within that time an agent must
// report what is wrong.
const answering = client.DefaultTimeout

// newLab creates the lab and waits until all of it runs.
func newLab(t testing.TB, s shape) *lab {
	t.Helper()
	need.Root(t)
	if !s.pool.IsValid() {
		s.pool = netip.MustParsePrefix("127.96.0.0/20")
	}
	s.agents = cmp.Or(s.agents, 3)
	l := &lab{t: t, net: netlab.New(t), shape: s}
	l.store = l.newStorage()
	if s.sources != nil {
		l.sources = s.sources(l)
	}
	for i := range s.agents {
		l.agents = append(l.agents, l.newAgent(fmt.Sprintf("lb%d", i+1)))
	}
	for _, a := range l.agents {
		l.launch(a)
	}
	for _, a := range l.agents {
		l.awaitReady(a)
	}
	return l
}

// newAgent creates a host without starting its agent.
func (l *lab) newAgent(name string) *agent {
	l.t.Helper()
	a := l.newHost(name)
	l.configure(a, l.store.section(a))
	a.node.Serve("tcp", target)
	l.setProgram(a, need.Binary(l.t), "agent", "--config", a.dir)
	return a
}

// newHost creates a host without an agent.
func (l *lab) newHost(name string) *agent {
	l.t.Helper()
	a := &agent{name: name, node: l.net.AddClient(name)}
	// The names of TempDir are too long for a unix socket.
	var err error
	a.dir, err = os.MkdirTemp("", "fleet")
	l.must(name+": a folder", err)
	l.t.Cleanup(func() { os.RemoveAll(a.dir) })
	return a
}

// configure writes the configuration of an agent. Section says where the store is.
func (l *lab) configure(a *agent, section string) {
	l.t.Helper()
	config := fmt.Appendf(nil, `[node]
name = "%s"
state_dir = "%[2]s/state"
[api]
socket = "%[2]s/sock"
[dataplane]
mode = "proxy"
[ipam]
store = "%[6]s"
reuse_delay = "%[3]s"
orphan_grace = "3s"
%[4]s[[pool]]
name = "main"
cidrs = ["%[5]s"]
`, a.name, a.dir, l.shape.reuse, section, l.shape.pool, l.store.name)
	if l.shape.catalog {
		config = fmt.Appendf(config, "[[source]]\ntype = \"consul\"\nname = \"dc1\"\naddress = \"%s\"\nshrink_guard = \"2s\"\n", l.consul[0].Addr)
	}
	config = append(config, l.sources...)
	l.must(a.name+": configuration", os.WriteFile(filepath.Join(a.dir, "ironvip.toml"), config, 0o644))
}

// setProgram sets the program that runs the host's agent, in the host's namespace.
func (l *lab) setProgram(a *agent, program string, args ...string) {
	l.t.Helper()
	a.proc = process.New(program, filepath.Join(a.dir, "log"), a.node, args...)
	var err error
	a.api, err = client.New(filepath.Join(a.dir, "sock"), client.Options{Timeout: answering})
	l.must(a.name+": a client", err)
	l.t.Cleanup(func() {
		a.proc.Kill()
		a.api.Close()
		if l.t.Failed() {
			l.t.Logf("%s: the end of its log:\n%s", a.name, a.proc.LogEnd(64<<10))
		}
	})
}

// run returns the agent's present run.
func (a *agent) run() Run { return Run{a.name, int(a.runs.Load())} }

// launch starts the agent's process.
func (l *lab) launch(a *agent) {
	l.t.Helper()
	a.runs.Add(1)
	l.must(a.name+": start", a.proc.Start())
}

// start starts the agent and waits until it is ready.
func (l *lab) start(a *agent) {
	l.t.Helper()
	l.launch(a)
	l.awaitReady(a)
}

func (l *lab) awaitReady(a *agent) {
	l.t.Helper()
	l.eventually(a.name+" is ready", func(ctx context.Context) error {
		if !a.proc.Running() {
			l.t.Fatalf("%s ended by itself: %s\n%s", a.name, a.proc.Ending(), a.proc.LogEnd(16<<10))
		}
		return a.api.Ready(ctx)
	})
}

// proxyConsul listens in the host's namespace for connections to Consul. It forwards each to the
// first available server, starting with a different server for each host.
func (l *lab) proxyConsul(a *agent) {
	first := len(l.agents)
	listener := a.node.Listen(netip.MustParseAddrPort(localConsul))
	ctx := l.t.Context()
	dial := func() (net.Conn, error) {
		var failed []error
		for i := range l.consul {
			short, cancel := context.WithTimeout(ctx, time.Second)
			c, err := a.node.DialContext(short, "tcp", l.consul[(first+i)%len(l.consul)].Addr.String())
			cancel()
			if err == nil {
				return c, nil
			}
			failed = append(failed, err)
		}
		return nil, errors.Join(failed...)
	}
	accept.Each(listener, func(in net.Conn) {
		out, err := dial()
		if err != nil {
			return
		}
		relay(ctx, in, out)
	})
}

// relay copies between two connections until one of them or the context ends, and closes both.
func relay(ctx context.Context, in, out net.Conn) {
	end := func() { in.Close(); out.Close() }
	defer end()
	defer context.AfterFunc(ctx, end)()
	go func() { io.Copy(out, in); end() }()
	io.Copy(in, out)
}

// cut disconnects the host from the network, and heal reconnects it.
func (l *lab) cut(a *agent) {
	l.t.Helper()
	link, err := l.net.Director.Netlink.LinkByName(a.name)
	l.must("cut "+a.name, err)
	l.must("cut "+a.name, l.net.Director.Netlink.LinkSetDown(link))
}

func (l *lab) heal(a *agent) {
	l.t.Helper()
	link, err := l.net.Director.Netlink.LinkByName(a.name)
	l.must("heal "+a.name, err)
	l.must("heal "+a.name, l.net.Director.Netlink.LinkSetUp(link))
}

// elected returns the agent that all of these agents report as the fleet's allocator.
func (l *lab) elected(of ...*agent) *agent {
	l.t.Helper()
	var found *agent
	l.eventually("an allocator is elected", func(ctx context.Context) error {
		found = nil
		for _, a := range of {
			nodes, err := a.api.Nodes(ctx)
			if err != nil {
				return err
			}
			name := ""
			for _, n := range nodes.Items {
				if n.Elected {
					name = n.Name
				}
			}
			i := slices.IndexFunc(l.agents, func(a *agent) bool { return a.name == name })
			if i < 0 {
				return fmt.Errorf("by %s, %q is elected among %+v", a.name, name, nodes.Items)
			}
			if found != nil && found != l.agents[i] {
				return fmt.Errorf("both %s and %s are elected", found.name, name)
			}
			found = l.agents[i]
		}
		return nil
	})
	return found
}

// electedInstead waits until the others report one of them as the allocator, which needs the end of
// the first one's session.
func (l *lab) electedInstead(first *agent) {
	l.t.Helper()
	l.eventually("another than "+first.name+" is elected", func(context.Context) error {
		if l.elected(l.others(first)...) == first {
			return errors.New("it still is")
		}
		return nil
	})
}

// others returns all agents but one.
func (l *lab) others(a *agent) []*agent {
	return slices.DeleteFunc(slices.Clone(l.agents), func(b *agent) bool { return a == b })
}

// maxWait bounds every wait of a test.
const maxWait = time.Minute

// eventually retries try until it returns no error.
func (l *lab) eventually(what string, try func(context.Context) error) {
	l.t.Helper()
	l.within(wait.Timeout, what, try)
}

// within is eventually with another limit.
func (l *lab) within(limit time.Duration, what string, try func(context.Context) error) {
	l.t.Helper()
	wait.Within(l.t, limit, what, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), answering)
		defer cancel()
		return try(ctx)
	})
}

func (l *lab) must(what string, err error) {
	l.t.Helper()
	must.Succeed(l.t, err, what)
}

// tokenOnEveryHost creates a token on one host, and revokes it on another: all hosts follow.
func (l *lab) tokenOnEveryHost() {
	l.t.Helper()
	ctx := l.t.Context()
	made := must.Get(l.agents[0].api.CreateToken(ctx, "reader", v1.TokenSpec{Role: "viewer"}))(l.t)
	// answers waits until every host answers two calls of the token's holder with these statuses.
	answers := func(what string, read, tokens int) {
		for _, a := range l.agents {
			c := must.Get(client.New(a.api.Addr(), client.Options{Token: made.Token}))(l.t)
			wait.For(l.t, what+" on "+a.name, func() error {
				_, readErr := c.Pools(ctx)
				_, tokensErr := c.Tokens(ctx)
				if statusOf(readErr) != read || statusOf(tokensErr) != tokens {
					return fmt.Errorf("read: %v; list tokens: %v", readErr, tokensErr)
				}
				return nil
			})
			c.Close()
		}
	}
	answers("the token is a viewer's", http.StatusOK, http.StatusForbidden)
	must.Get(l.agents[1].api.RevokeToken(ctx, "reader"))(l.t)
	answers("the token is revoked", http.StatusUnauthorized, http.StatusUnauthorized)
}

// statusOf returns the status of a call.
func statusOf(err error) int {
	var e *client.Error
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &e):
		return e.Status
	}
	return 0
}
