//go:build system

package fleet_test

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/etcd"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/test/etcdtest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

func etcdClient(t testing.TB, s *etcdtest.Servers) *etcd.Client {
	t.Helper()
	store := etcd.New(etcd.Config{Endpoints: s.URLs})
	t.Cleanup(store.Close)
	return store
}

// joinEtcd runs a tree on etcd and waits for its first read.
func joinEtcd(t testing.TB, s *etcdtest.Servers, node string) *fleet.Tree {
	t.Helper()
	h := fleettest.RunTree(t, fleet.Options{KV: etcdClient(t, s), Node: node, Folders: folders}, nil)
	for _, f := range folders {
		<-h.Folder(f).Ready()
	}
	return h.Tree
}

func TestEtcdIsAKV(t *testing.T) {
	t.Parallel()
	kvContract(t, etcdClient(t, etcdtest.Start(t, etcdtest.Options{})), false)
}

// A list has all keys, also those of several answers. A query for a change whose history is compacted returns at once.
func TestLongListsOfEtcd(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{})
	store := etcdClient(t, s)
	const keys = 10_100
	var first uint64
	for some := range slices.Chunk(slices.Collect(numbers(keys)), 100) {
		var ops []kv.Op
		for _, n := range some {
			ops = append(ops, kv.Op{Verb: kv.Set, Key: fmt.Sprintf("t/%06d", n), Value: []byte("1")})
		}
		out := must.Get(store.Txn(t.Context(), ops))(t)
		first = cmp.Or(first, out.Index)
	}
	must.Get(store.Txn(t.Context(), []kv.Op{{Verb: kv.Set, Key: "u/1"}}))(t)
	pairs, _, err := store.List(t.Context(), "t/", kv.Query{})
	must.Succeed(t, err)
	expect.Len(t, pairs, keys)
	expect.Equal(t, pairs[keys-1].Key, fmt.Sprintf("t/%06d", keys-1), "the last key")
	s.Compact()
	pair, index, err := store.Get(t.Context(), "t/000000", kv.Query{After: first, Wait: time.Minute})
	must.Succeed(t, err)
	expect.True(t, pair != nil && pair.Index == first && index > first, "%+v at %d", pair, index)
}

func numbers(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// With authentication, a wrong password is named, a host with the role works, also after the tokens of its user are outdated,
// and one whose role is taken away goes on with what it knows.
func TestUsersOfEtcd(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{})
	must.Get(s.Client.RoleAdd(t.Context(), "fleet"))(t)
	grant := func() {
		t.Helper()
		must.Get(s.Client.RoleGrantPermission(t.Context(), "fleet", "ironvip/", clientv3.GetPrefixRangeEnd("ironvip/"), clientv3.PermissionType(clientv3.PermReadWrite)))(t)
	}
	grant()
	for _, user := range []string{"root", "lb"} {
		must.Get(s.Client.UserAdd(t.Context(), user, "secret"))(t)
	}
	must.Get(s.Client.UserGrantRole(t.Context(), "root", "root"))(t)
	must.Get(s.Client.UserGrantRole(t.Context(), "lb", "fleet"))(t)
	must.Get(s.Client.AuthEnable(t.Context()))(t)
	s.Authenticate("root", "secret")
	as := func(node, password string) *fleet.Tree {
		store := etcd.New(etcd.Config{Endpoints: s.URLs, Username: "lb", Password: password})
		t.Cleanup(store.Close)
		return fleettest.RunTree(t, fleet.Options{KV: store, Node: node, Folders: folders}, nil).Tree
	}
	stranger := as("three", "wrong")
	wait.Until(t, "the password is named", func() bool { return strings.Contains(stranger.Stale(), "invalid user ID or password") }, func() any { return stranger.Stale() })
	one, two := as("one", "secret"), as("two", "secret")
	put(t, one, "x", "1")
	wait.Until(t, "the other host has it", func() bool { return at(two, "a", "x") == "1" })
	must.Get(s.Client.UserChangePassword(t.Context(), "root", "secret"))(t) // a new version of all permissions
	put(t, two, "x", "2")
	wait.Until(t, "the other host has it", func() bool { return at(one, "a", "x") == "2" })
	must.Get(s.Client.RoleRevokePermission(t.Context(), "fleet", "ironvip/", clientv3.GetPrefixRangeEnd("ironvip/")))(t)
	wait.Until(t, "without permission", func() bool {
		_ = one.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "never", "", 0)}}})
		return strings.Contains(one.Stale(), "permission denied")
	}, func() any { return one.Stale() })
	expect.Equal(t, at(one, "a", "x"), "2", "x")
	grant()
	put(t, one, "x", "3")
	wait.Until(t, "the other host has it", func() bool { return at(two, "a", "x") == "3" })
}

// Hosts reach etcd with their certificates, and one without is refused.
func TestCertificatesOfEtcd(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{TLS: true})
	store := etcd.New(etcd.Config{Endpoints: s.URLs, TLS: s.TLS})
	t.Cleanup(store.Close)
	put(t, fleettest.RunTree(t, fleet.Options{KV: store, Node: "one", Folders: folders}, nil).Tree, "x", "1")
	bare := etcd.New(etcd.Config{Endpoints: s.URLs, TLS: &tls.Config{RootCAs: s.TLS.RootCAs}})
	t.Cleanup(bare.Close)
	stranger := fleettest.RunTree(t, fleet.Options{KV: bare, Node: "two", Folders: folders}, nil)
	wait.Until(t, "without a certificate", func() bool { return stranger.Stale() != "" })
}

// etcdPairs reads the servers' content of the tree.
func etcdPairs(t testing.TB, s *etcdtest.Servers) func() []kv.Pair {
	return func() (out []kv.Pair) {
		t.Helper()
		r := must.Get(s.Client.Get(t.Context(), treePrefix, clientv3.WithPrefix()))(t)
		for _, pair := range r.Kvs {
			out = append(out, kv.Pair{Key: string(pair.Key), Value: pair.Value, Index: uint64(pair.ModRevision)})
		}
		return out
	}
}

// Hosts follow a member that comes back with an older disk.
func TestOlderStateOnEtcd(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{})
	goesBack(t, joinEtcd(t, s, "one"), joinEtcd(t, s, "two"), etcdPairs(t, s), s.Backup)
}

// Hosts follow the tree while the history is compacted, and while the leading member is killed, stalled and comes back.
func TestFaultsOfEtcd(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{Members: 3})
	one, two := joinEtcd(t, s, "one"), joinEtcd(t, s, "two")
	put(t, one, "x", "1")
	s.Compact()
	put(t, two, "x", "2")
	wantTree(t, etcdPairs(t, s), one, two)
	leader := s.Leader()
	s.Kill(leader)
	put(t, one, "x", "3")
	wantTree(t, etcdPairs(t, s), one, two)
	s.Begin(leader)
	s.WaitReady()
	leader = s.Leader()
	s.Pause(leader)
	put(t, two, "x", "4")
	s.Compact()
	s.Resume(leader)
	put(t, one, "y", "1")
	wantTree(t, etcdPairs(t, s), one, two)
}
