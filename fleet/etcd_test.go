//go:build system

package fleet_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consulkv"
	"github.com/ironvip/ironvip/fleet/etcdkv"
	"github.com/ironvip/ironvip/test/etcdtest"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

func etcdClient(t testing.TB, s *etcdtest.Servers) *etcdkv.Client {
	t.Helper()
	kv := must.Get(etcdkv.New(etcdkv.Config{Endpoints: s.URLs}))(t)
	t.Cleanup(kv.Close)
	return kv
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
	kvContract(t, etcdClient(t, etcdtest.Start(t, 1)), false)
}

// etcdPairs reads the servers' content of the tree.
func etcdPairs(t testing.TB, s *etcdtest.Servers) func() []consulkv.Pair {
	return func() (out []consulkv.Pair) {
		t.Helper()
		r := must.Get(s.Client.Get(t.Context(), treePrefix, clientv3.WithPrefix()))(t)
		for _, kv := range r.Kvs {
			out = append(out, consulkv.Pair{Key: string(kv.Key), Value: kv.Value, Index: uint64(kv.ModRevision)})
		}
		return out
	}
}

// Hosts follow a member that comes back with an older disk.
func TestOlderStateOnEtcd(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, 1)
	goesBack(t, joinEtcd(t, s, "one"), joinEtcd(t, s, "two"), etcdPairs(t, s), s.Backup)
}

// Hosts follow the tree while the history is compacted, and while the leading member is killed, stalled and comes back.
func TestFaultsOfEtcd(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, 3)
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
