//go:build system

package fleet_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// join runs a tree against real servers and waits for its first read.
func join(t testing.TB, c consul.Config, node string) *fleet.Tree {
	t.Helper()
	tree, _ := run(t, c, node)
	for _, f := range folders {
		<-tree.Folder(f).Ready()
	}
	return tree
}

func run(t testing.TB, c consul.Config, node string) (tree *fleet.Tree, end func()) {
	t.Helper()
	h := fleettest.RunOn(t, c, fleet.Options{Node: node, Folders: folders}, nil)
	return h.Tree, h.End
}

func config(s *consultest.Server) consul.Config {
	return consul.Config{Address: s.URL, Token: s.Token}
}

// pairs reads the servers' content of the tree.
func pairs(t testing.TB, s *consultest.Server) (out []kv.Pair) {
	t.Helper()
	list, _, err := s.Client.KV().List(treePrefix, &api.QueryOptions{RequireConsistent: true})
	expect.Succeed(t, err)
	for _, p := range list {
		out = append(out, kv.Pair{Key: p.Key, Value: p.Value, Index: p.ModifyIndex})
	}
	return out
}

func wantSameOn(t testing.TB, s *consultest.Server, trees ...*fleet.Tree) {
	t.Helper()
	wantTree(t, func() []kv.Pair { return pairs(t, s) }, trees...)
}

func wantTree(t testing.TB, pairs func() []kv.Pair, trees ...*fleet.Tree) {
	t.Helper()
	for i, tree := range trees {
		wait.For(t, fmt.Sprintf("tree %d is the store", i), func() error {
			if why := tree.Stale(); why != "" {
				return errors.New(why)
			}
			return same(tree, pairs(), treePrefix)
		})
	}
}

func at(tree *fleet.Tree, folder, key string) string {
	e, _, _ := tree.Folder(folder).Get(key)
	return string(e.Value)
}

// put writes a key unconditionally, with retries.
func put(t testing.TB, tree *fleet.Tree, key, value string) {
	t.Helper()
	wait.Until(t, "written: "+key, func() bool {
		e, _, _ := tree.Folder("a").Get(key)
		b := &fleet.Batch{Writes: []fleet.Write{set("a", key, value, e.Index)}}
		return tree.Commit(t.Context(), []*fleet.Batch{b}) == nil && b.Err == nil
	})
}

func TestConsulIsAKV(t *testing.T) {
	t.Parallel()
	store := must.Get(consul.New(config(consultest.Start(t, consultest.Options{Memory: true}))))(t)
	defer store.Close()
	kvContract(t, store, true)
}

// The server restarts from an older copy of its disk.
// Slow: Consul restarts from a copy of its disk and elects itself, which takes seconds.
func TestOlderStateOnConsul(t *testing.T) {
	t.Parallel()
	olderState(t, func(s *consultest.Server) (back func()) {
		disk := s.Disk()
		return func() { s.RestartFrom(disk) }
	})
}

// A snapshot is restored into the running server.
func TestSnapshotIsRestoredIntoConsul(t *testing.T) {
	t.Parallel()
	olderState(t, func(s *consultest.Server) (back func()) {
		snapshot := s.Snapshot()
		return func() { s.Restore(snapshot) }
	})
}

// olderState checks that hosts follow a server that goes back to the state at the call of begin.
func olderState(t *testing.T, begin func(*consultest.Server) (back func())) {
	s := consultest.Start(t, consultest.Options{})
	goesBack(t, join(t, config(s), "one"), join(t, config(s), "two"), func() []kv.Pair { return pairs(t, s) }, func() (back func()) { return begin(s) })
}

// goesBack checks that hosts follow a store that goes back to the state at the call of begin.
func goesBack(t *testing.T, one, two *fleet.Tree, pairs func() []kv.Pair, begin func() (back func())) {
	for i := range 5 {
		put(t, one, fmt.Sprint("kept", i), "1")
	}
	back := begin()
	for i := range 5 {
		put(t, one, fmt.Sprint("later", i), "new")
		put(t, two, "kept0", fmt.Sprint("new", i))
	}
	wait.Until(t, "both have it", func() bool { return at(two, "a", "later4") == "new" && at(one, "a", "kept0") == "new4" })
	back()
	wantTree(t, pairs, one, two)
	expect.Equal(t, at(one, "a", "kept0")+at(two, "a", "kept0")+at(one, "a", "later0"), "11", "after")
	for i := range 5 {
		put(t, two, fmt.Sprint("after", i), "new")
		put(t, one, "kept1", fmt.Sprint("new", i))
	}
	wantTree(t, pairs, one, two)
}

// Permissions are revoked and granted again, and token files rotate. An answer that a missing
// permission shortens is not accepted.
// Slow: a client uses a token for up to a second after its file has changed, and seven tokens follow each other.
func TestTokensOnConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true, Memory: true})
	const rules = `key_prefix "ironvip/" { policy = "write" } session_prefix "" { policy = "write" }`
	file := filepath.Join(t.TempDir(), "token")
	give := func(token string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file+".new", []byte(token+"\n"), 0o600))
		must.Succeed(t, os.Rename(file+".new", file))
	}
	first := s.NewToken(rules)
	give(first)
	c := consul.Config{Address: s.URL, TokenFile: file}
	one := join(t, c, "one")
	wait.Until(t, "elected", one.Mine)
	put(t, one, "x", "1")
	s.RevokeToken(first)
	stale := func(what string) {
		t.Helper()
		wait.Until(t, "stale because "+what, func() bool {
			_ = one.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "never", "", 0)}}})
			return strings.Contains(one.Stale(), "token")
		})
		must.Equal(t, at(one, "a", "x"), "1", "%s: what was known is gone", what)
	}
	stale("it is revoked")
	give(s.NewToken(rules))
	wait.Until(t, "in touch with the new token", func() bool { return one.Stale() == "" })
	put(t, one, "y", "1")

	for name, less := range map[string]string{
		"nothing may be read": `session_prefix "" { policy = "write" }`,
		"a part may be read":  `key_prefix "ironvip/v2/log/" { policy = "write" } key_prefix "ironvip/v2/tree/b/" { policy = "read" }`,
		"one folder may not":  `key_prefix "ironvip/" { policy = "write" } key_prefix "ironvip/v2/tree/a/" { policy = "deny" } session_prefix "" { policy = "write" }`,
	} {
		give(s.NewToken(less))
		two, end := run(t, c, "two") // begins with it
		wait.Until(t, name, func() bool { return strings.Contains(two.Stale(), "token") || strings.Contains(two.Stale(), "read") })
		end()
		give(s.NewToken(rules))
		wait.Until(t, "in touch after "+name, func() bool { return one.Stale() == "" })
		must.Equal(t, at(one, "a", "x"), "1", "%s: what was known is gone", name)
	}
	read := s.NewToken(`key_prefix "ironvip/" { policy = "read" } session_prefix "" { policy = "write" }`)
	give(read)
	index, n := uint64(0), 0
	wait.Until(t, "a token that may only read is used", func() bool {
		n++
		b := &fleet.Batch{Writes: []fleet.Write{set("a", "z", strconv.Itoa(n), index)}}
		err := one.Commit(t.Context(), []*fleet.Batch{b})
		if err == nil && b.Err == nil { // the token before it, which a client keeps for a second
			index = b.Indexes[0]
			return false
		}
		return err != nil && strings.Contains(err.Error(), "token")
	})
}

func TestWaysToConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{TLS: true, Memory: true})
	for name, c := range map[string]consul.Config{
		"unix": {Address: "unix://" + s.Socket},
		"tls":  {Address: s.URL, CAFile: s.TLS.CA, CertFile: s.TLS.Cert, KeyFile: s.TLS.Key},
	} {
		tree := join(t, c, name)
		put(t, tree, name, "1")
		wantSameOn(t, s, tree)
	}
	tree, _ := run(t, consul.Config{Address: s.URL}, "stranger")
	wait.Until(t, "the certificate is not trusted", func() bool { return strings.Contains(tree.Stale(), "certificate") })
}
