//go:build system

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/etcdtest"
)

// storage is the store of a lab's fleet: its servers, and what they have stored.
type storage struct {
	name    string   // as in ipam.store
	servers []server // each in a namespace of its own
	// leads returns the index of the server that leads. It waits for one.
	leads func(t testing.TB) int
	// section returns the part of a host's configuration that says where the store is.
	section func(a *agent) string

	list    func(ctx context.Context, prefix string) (map[string][]byte, error)
	session func(ctx context.Context, key string) (string, error) // that has locked a key; "" for none
	end     func(ctx context.Context, session string) error
}

// server is a server of the store. Any goroutine may kill, stall and continue it.
type server interface {
	Start()
	Kill()
	Pause()
	Continue()
	Running() bool
}

// newStorage starts the store of a lab and waits until it is ready.
func (l *lab) newStorage() *storage {
	if l.shape.etcd {
		return l.newEtcd()
	}
	return l.newConsul()
}

func (l *lab) newConsul() *storage {
	var each []consultest.Options
	for i := range l.shape.servers {
		n := l.net.AddClient(fmt.Sprintf("consul%d", i+1))
		each = append(each, consultest.Options{Name: n.Name, In: n, Addr: n.Addr4, Config: l.shape.consul})
	}
	s := &storage{name: "consul"}
	if l.shape.servers == 1 {
		l.consul = []*consultest.Server{consultest.Start(l.t, each[0])}
	} else {
		cluster := consultest.StartCluster(l.t, each...)
		l.consul = cluster.Servers
		s.leads = func(t testing.TB) int {
			leader := cluster.For(t).Leader()
			return slices.IndexFunc(l.consul, func(s *consultest.Server) bool { return s.Name == leader.Name })
		}
	}
	for _, server := range l.consul {
		s.servers = append(s.servers, server)
	}
	s.section = func(a *agent) string {
		address := l.consul[0].Addr.String()
		if len(l.consul) > 1 {
			address = localConsul
			l.proxyConsul(a)
		}
		return consulSection(address)
	}
	client := func() *api.Client { // of a running server
		for _, server := range l.consul {
			if server.Running() {
				return server.Client
			}
		}
		return l.consul[0].Client
	}
	query := func(ctx context.Context) *api.QueryOptions {
		return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	}
	s.list = func(ctx context.Context, prefix string) (map[string][]byte, error) {
		pairs, _, err := client().KV().List(prefix, query(ctx))
		all := map[string][]byte{}
		for _, p := range pairs {
			all[p.Key] = p.Value
		}
		return all, err
	}
	s.session = func(ctx context.Context, key string) (string, error) {
		pair, _, err := client().KV().Get(key, query(ctx))
		if pair == nil {
			return "", err
		}
		return pair.Session, err
	}
	s.end = func(_ context.Context, session string) error {
		_, err := client().Session().Destroy(session, nil)
		return err
	}
	return s
}

func consulSection(address string) string { return fmt.Sprintf("[consul]\naddress = %q\n", address) }

// etcdMember is a member of etcd.
type etcdMember struct {
	*etcdtest.Servers
	number int
}

func (m etcdMember) Start()        { m.Begin(m.number) }
func (m etcdMember) Kill()         { m.Servers.Kill(m.number) }
func (m etcdMember) Pause()        { m.Servers.Pause(m.number) }
func (m etcdMember) Continue()     { m.Resume(m.number) }
func (m etcdMember) Running() bool { return m.Servers.Running(m.number) }

func (l *lab) newEtcd() *storage {
	var in []etcdtest.Host
	for i := range l.shape.servers {
		n := l.net.AddClient(fmt.Sprintf("etcd%d", i+1))
		in = append(in, etcdtest.Host{Node: n, Addr: n.Addr4})
	}
	members := etcdtest.Start(l.t, etcdtest.Options{Hosts: in})
	s := &storage{name: "etcd", leads: func(testing.TB) int { return members.Leader() }}
	for i := range in {
		s.servers = append(s.servers, etcdMember{members, i})
	}
	s.section = func(*agent) string {
		return fmt.Sprintf("[etcd]\nendpoints = [\"%s\"]\n", strings.Join(members.URLs, `", "`))
	}
	s.list = func(ctx context.Context, prefix string) (map[string][]byte, error) {
		r, err := members.Client.Get(ctx, prefix, clientv3.WithPrefix())
		if err != nil {
			return nil, err
		}
		all := map[string][]byte{}
		for _, pair := range r.Kvs {
			all[string(pair.Key)] = pair.Value
		}
		return all, nil
	}
	s.session = func(ctx context.Context, key string) (string, error) {
		r, err := members.Client.Get(ctx, key)
		if err != nil || len(r.Kvs) == 0 || r.Kvs[0].Lease == 0 {
			return "", err
		}
		return fmt.Sprint(r.Kvs[0].Lease), nil
	}
	s.end = func(ctx context.Context, session string) error {
		var id clientv3.LeaseID
		if _, err := fmt.Sscan(session, &id); err != nil {
			return err
		}
		_, err := members.Client.Revoke(ctx, id)
		return err
	}
	return s
}

// sessionOf returns the session that holds the agent's name.
func (l *lab) sessionOf(a *agent) (session string) {
	l.t.Helper()
	l.eventually("the session of "+a.name, func(ctx context.Context) (err error) {
		if session, err = l.store.session(ctx, "ironvip/v2/nodes/"+a.name); err == nil && session == "" {
			err = errors.New("it has none")
		}
		return err
	})
	return session
}

// endSession ends the session of an agent that is killed, as the store does some time after its TTL of 20 s.
func (l *lab) endSession(a *agent) {
	l.t.Helper()
	session := l.sessionOf(a)
	l.must("end the session of "+a.name, l.store.end(l.t.Context(), session))
}
