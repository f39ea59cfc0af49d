//go:build system

package fleet_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/fleettest"
	"github.com/ironvip/ironvip/internal/fleet/membership"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/wait"
)

// join runs a tree against real servers and waits for its first read.
func join(t testing.TB, c consulkv.Config, node string) *fleet.Tree {
	t.Helper()
	tree, _ := run(t, c, node)
	for _, f := range folders {
		<-tree.Folder(f).Ready()
	}
	return tree
}

func run(t testing.TB, c consulkv.Config, node string) (tree *fleet.Tree, end func()) {
	t.Helper()
	h := fleettest.RunOn(t, c, fleet.Options{Node: node, Folders: folders}, nil)
	return h.Tree, h.End
}

func config(s *consultest.Server) consulkv.Config {
	return consulkv.Config{Address: s.URL, Token: s.Token}
}

// pairs reads the servers' content of the tree.
func pairs(t testing.TB, s *consultest.Server) (out []consulkv.Pair) {
	t.Helper()
	list, _, err := s.Client.KV().List(treePrefix, &api.QueryOptions{RequireConsistent: true})
	if err != nil {
		t.Error(err)
	}
	for _, p := range list {
		out = append(out, consulkv.Pair{Key: p.Key, Value: p.Value, Index: p.ModifyIndex})
	}
	return out
}

func wantSameOn(t testing.TB, s *consultest.Server, trees ...*fleet.Tree) {
	t.Helper()
	for i, tree := range trees {
		var err error
		wait.Until(t, fmt.Sprintf("tree %d is the store: %v %s", i, err, tree.Stale()), func() bool {
			err = same(tree, pairs(t, s), treePrefix)
			return err == nil && tree.Stale() == ""
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
	kv, err := consulkv.New(config(consultest.Start(t, consultest.Options{Memory: true})))
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	kvContract(t, kv)
}

// A storm on one server that is killed, stalled and has its sessions ended.
func TestStormOnConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	trees := []*fleet.Tree{join(t, config(s), "one"), join(t, config(s), "two"), join(t, config(s), "three")}
	storm(t, 1, 300, trees, func() []consulkv.Pair { return pairs(t, s) }, func(ctx context.Context, r *rand.Rand) {
		switch r.IntN(3) {
		case 0:
			s.Kill()
			pause(ctx, time.Duration(r.IntN(500))*time.Millisecond)
			s.Start()
			pause(ctx, 3*time.Second)
		case 1:
			s.Pause()
			pause(ctx, time.Duration(r.IntN(2000))*time.Millisecond)
			s.Continue()
		case 2:
			if sessions, _, err := s.Client.Session().List(nil); err == nil {
				for _, session := range sessions {
					_, _ = s.Client.Session().Destroy(session.ID, nil)
				}
			}
		}
		pause(ctx, time.Duration(r.IntN(500))*time.Millisecond)
	}, s.WaitReady)
}

// A storm on a cluster of three with repeated kills of the leader and of other servers.
func TestStormOnACluster(t *testing.T) {
	t.Parallel()
	c := consultest.StartCluster(t, consultest.Options{}, consultest.Options{}, consultest.Options{})
	var trees []*fleet.Tree
	for i, s := range c.Servers {
		trees = append(trees, join(t, config(s), fmt.Sprint("node", i)))
	}
	storm(t, 2, 300, trees, func() []consulkv.Pair { return pairs(t, c.Leader()) }, func(ctx context.Context, r *rand.Rand) {
		s := c.Leader()
		if r.IntN(3) == 0 {
			s = c.Followers()[r.IntN(2)]
		}
		if r.IntN(2) == 0 {
			s.Kill()
			pause(ctx, time.Duration(1+r.IntN(5))*time.Second)
			s.Start()
		} else {
			s.Pause()
			pause(ctx, time.Duration(1+r.IntN(5))*time.Second)
			s.Continue()
		}
		c.WaitReady()
		pause(ctx, time.Second)
	}, c.WaitReady)
}

// A server that has lost the others still answers stale reads, such as a blocking query of the log.
// A host that asks this server notices that it is cut off, and goes on with what it knows.
func TestServerWithoutALeader(t *testing.T) {
	t.Parallel()
	c := consultest.StartCluster(t, consultest.Options{}, consultest.Options{}, consultest.Options{})
	last := c.Followers()[0]
	tree := join(t, config(last), "one")
	put(t, tree, "x", "1")
	kv, err := consulkv.New(config(last))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kv.Close)
	reads := func(q consulkv.Query) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		pair, _, err := kv.Get(ctx, treePrefix+"a/x", q)
		return err == nil && pair != nil && string(pair.Value) == "1"
	}
	wait.Until(t, "the server has the value", func() bool { return reads(consulkv.Query{Stale: true}) })
	for _, s := range c.Servers {
		if s != last {
			s.Kill()
		}
	}
	wait.Until(t, "the server has no leader", func() bool { return !reads(consulkv.Query{}) })
	if !reads(consulkv.Query{Stale: true}) {
		t.Error("the server doesn't answer stale reads")
	}
	wait.Until(t, "the host is out of touch", func() bool { return tree.Stale() != "" })
	if got := at(tree, "a", "x"); got != "1" {
		t.Errorf("x is %q without Consul", got)
	}
	for _, s := range c.Servers {
		if s != last {
			s.Start()
		}
	}
	c.WaitReady()
	wait.Until(t, "the host is in touch", func() bool { return tree.Stale() == "" })
	put(t, tree, "x", "2")
	wantSameOn(t, c.Leader(), tree)
}

// A snapshot is restored into the running server, and the server restarts from an older copy of its
// disk.
func TestOlderStateOnConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	one, two := join(t, config(s), "one"), join(t, config(s), "two")
	for i := range 5 {
		put(t, one, fmt.Sprint("kept", i), "1")
	}
	snapshot := s.Snapshot()
	disk := s.Disk()
	for name, back := range map[string]func(){
		"snapshot restored": func() { s.Restore(snapshot) },
		"older disk":        func() { s.RestartFrom(disk) },
	} {
		t.Run(name, func(t *testing.T) {
			s := s.For(t)
			for i := range 5 {
				put(t, one, fmt.Sprint("later", i), name)
				put(t, two, "kept0", fmt.Sprint(name, i))
			}
			wait.Until(t, "both have it", func() bool { return at(two, "a", "later4") == name && at(one, "a", "kept0") == name+"4" })
			back()
			wantSameOn(t, s, one, two)
			if got := at(one, "a", "kept0") + at(two, "a", "kept0") + at(one, "a", "later0"); got != "11" {
				t.Errorf("after: %q", got)
			}
			for i := range 5 {
				put(t, two, fmt.Sprint("after", i), name)
				put(t, one, "kept1", fmt.Sprint(name, i))
			}
			wantSameOn(t, s, one, two)
		})
	}
}

// Manually written invalid keys are reported after a Reread, and no longer after the next one.
func TestRereadOnConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{Memory: true})
	one := join(t, config(s), "lb1")
	if !one.OwnName() {
		t.Error("alone, the name is not its own")
	}
	if _, err := s.Client.KV().Put(&api.KVPair{Key: treePrefix + "nowhere/x", Value: []byte("junk")}, nil); err != nil {
		t.Fatal(err)
	}
	if err := one.Reread(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, all := one.FirstProblems(0); all != 1 {
		t.Errorf("%v", one.Problems())
	}
	if _, err := s.Client.KV().Delete(treePrefix+"nowhere/x", nil); err != nil {
		t.Fatal(err)
	}
	if err := one.Reread(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, all := one.FirstProblems(0); all != 0 {
		t.Errorf("%v", one.Problems())
	}
}

// severed is a connection to Consul that can be cut, as by a kill of the process.
type severed struct {
	*consulkv.Client
	cut atomic.Bool
}

var errSevered = errors.New("cut")

func (s *severed) Txn(ctx context.Context, ops []consulkv.Op) (consulkv.Outcome, error) {
	if s.cut.Load() {
		return consulkv.Outcome{}, errSevered
	}
	return s.Client.Txn(ctx, ops)
}

func (s *severed) EndSession(ctx context.Context, id string) error {
	if s.cut.Load() {
		return errSevered
	}
	return s.Client.EndSession(ctx, id)
}

// runAs runs a tree with an identity. Kill ends it and leaves its session behind.
func runAs(t *testing.T, c consulkv.Config, node string, id membership.Identity) (tree *fleet.Tree, ended <-chan error, kill func()) {
	t.Helper()
	kv, err := consulkv.New(c)
	if err != nil {
		t.Fatal(err)
	}
	connection := &severed{Client: kv}
	tree = fleet.New(fleet.Options{KV: connection, Clock: &table.Clock{}, Node: node, Identity: id, Folders: folders})
	ctx, cancel := context.WithCancel(context.Background())
	end, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		defer kv.Close()
		end <- tree.Run(ctx)
	}()
	kill = sync.OnceFunc(func() {
		connection.cut.Store(true)
		cancel()
		<-done
	})
	t.Cleanup(func() { cancel(); <-done })
	return tree, end, kill
}

// Hosts with the id or the name of a live one are refused. An earlier run's locks are taken over
// at once with the same state file, and with another one as soon as its session has expired.
func TestIdentityOnConsul(t *testing.T) {
	t.Parallel()
	c := config(consultest.Start(t, consultest.Options{Memory: true}))
	identity := func(id, file string) membership.Identity {
		return membership.Identity{ID: id, File: file, Hostname: "db7"}
	}
	ready := func(tree *fleet.Tree) func() bool {
		return func() bool {
			select {
			case <-tree.Folder("a").Ready():
				return true
			default:
				return false
			}
		}
	}
	first, _, kill := runAs(t, c, "lb1", identity("id-1", "boot-1:1"))
	wait.Until(t, "the first is there", ready(first))
	for range 3 { // killed, and restarted immediately
		kill()
		began := time.Now()
		first, _, kill = runAs(t, c, "lb1", identity("id-1", "boot-1:1"))
		wait.Until(t, "restarted", ready(first))
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("a restart took %v", took)
		}
	}
	clone, refused, _ := runAs(t, c, "lb1", identity("id-1", "boot-2:1"))
	namesake, alsoRefused, _ := runAs(t, c, "lb1", identity("id-2", "boot-2:1"))
	for what, ended := range map[string]<-chan error{"host id id-1 is in use": refused, `node name "lb1" is in use`: alsoRefused} {
		select {
		case err := <-ended:
			if _, is := errors.AsType[*membership.DuplicateNodeError](err); !is || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), `node "lb1" on host db7`) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("not refused: %s", what)
		}
	}
	if ready(clone)() || ready(namesake)() {
		t.Error("a refused host was ready")
	}
	if first.Stale() != "" || !first.OwnName() {
		t.Errorf("the first one: %q", first.Stale())
	}
	kill()
	began := time.Now()
	reinstalled, ended, _ := runAs(t, c, "lb1", identity("id-2", "boot-2:1"))
	wait.Until(t, "a reinstalled host gets its name", func() bool { return len(ended) > 0 || ready(reinstalled)() },
		func() any { return reinstalled.Stale() })
	if len(ended) > 0 {
		t.Fatalf("a reinstalled host doesn't get its name: %v", <-ended)
	}
	if took := time.Since(began); took < 5*time.Second {
		t.Errorf("after %v the session of the killed one can't have expired", took)
	}
}

func TestSessionInvalidatedOnConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{Memory: true})
	trees := map[string]*fleet.Tree{}
	ends := map[string]func(){}
	for _, node := range []string{"one", "two", "three"} {
		trees[node], ends[node] = run(t, config(s), node)
	}
	// elected returns the elected host, or "" while two report their election. A host with a
	// session that others ended may learn of it after the next one has been elected.
	elected := func() (name string) {
		for node, tree := range trees {
			if tree.Mine() {
				if name != "" {
					return ""
				}
				name = node
			}
		}
		return name
	}
	everybody := func(count int) func() bool {
		return func() bool {
			name := elected()
			for _, tree := range trees {
				nodes, err := tree.Nodes(t.Context())
				if name == "" || tree.Elected() != name || err != nil || len(nodes) != count {
					return false
				}
			}
			return true
		}
	}
	wait.Until(t, "all know who is elected and who is there", everybody(3))
	sessions, _, err := s.Client.Session().List(nil)
	if err != nil || len(sessions) < 3 { // more if an answer was too late
		t.Fatalf("%v %v", sessions, err)
	}
	for _, session := range sessions {
		if _, err := s.Client.Session().Destroy(session.ID, nil); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "one is elected again", everybody(3))
	was := elected()
	ends[was]()
	delete(trees, was)
	wait.Until(t, "the next is", everybody(2))
}

// Permissions are revoked and granted again, and token files rotate. An answer that a missing
// permission shortens is not accepted.
func TestTokensOnConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true, Memory: true})
	const rules = `key_prefix "ironvip/" { policy = "write" } session_prefix "" { policy = "write" }`
	file := filepath.Join(t.TempDir(), "token")
	give := func(token string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	first := s.NewToken(rules)
	give(first)
	c := consulkv.Config{Address: s.URL, TokenFile: file}
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
		if at(one, "a", "x") != "1" {
			t.Fatalf("%s: what was known is gone", what)
		}
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
		if at(one, "a", "x") != "1" {
			t.Fatalf("%s: what was known is gone", name)
		}
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
	for name, c := range map[string]consulkv.Config{
		"unix": {Address: "unix://" + s.Socket},
		"tls":  {Address: s.URL, CAFile: s.TLS.CA, CertFile: s.TLS.Cert, KeyFile: s.TLS.Key},
	} {
		tree := join(t, c, name)
		put(t, tree, name, "1")
		wantSameOn(t, s, tree)
	}
	tree, _ := run(t, consulkv.Config{Address: s.URL}, "stranger")
	wait.Until(t, "the certificate is not trusted", func() bool { return strings.Contains(tree.Stale(), "certificate") })
}

// A stalled server is detected, and writes during the stall are not lost.
func TestStalledConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	one, two := join(t, config(s), "one"), join(t, config(s), "two")
	put(t, one, "x", "1")
	s.Pause()
	wait.Until(t, "both are stale", func() bool { return one.Stale() != "" && two.Stale() != "" })
	s.Continue()
	put(t, one, "x", "2")
	wantSameOn(t, s, one, two)
}

// BenchmarkFollow compares the data that a host reads for one change when it follows the log
// and when it watches the tree itself, with 10,000 values of 400 bytes.
func BenchmarkFollow(b *testing.B) {
	const size = 10_000
	s := consultest.Start(b, consultest.Options{})
	tree := join(b, config(s), "one")
	var batches []*fleet.Batch
	for i := range size {
		batches = append(batches, &fleet.Batch{Writes: []fleet.Write{set("a", fmt.Sprint(i), strings.Repeat("v", 400), 0)}})
	}
	if err := tree.Commit(b.Context(), batches); err != nil {
		b.Fatal(err)
	}
	for _, way := range []struct{ name, prefix string }{{"log", "ironvip/v2/log/head"}, {"tree", treePrefix}} {
		b.Run(way.name, func(b *testing.B) {
			follow(b, s, tree, way.prefix)
		})
	}
	b.Run("bare key", func(b *testing.B) { // the cost in Consul itself
		kv := s.Client.KV()
		p := &api.KVPair{Key: "bare", Value: []byte("start")}
		if _, err := kv.Put(p, nil); err != nil {
			b.Fatal(err)
		}
		_, meta, err := kv.Get("bare", nil)
		if err != nil {
			b.Fatal(err)
		}
		for i := 0; b.Loop(); i++ {
			seen := make(chan error, 1)
			go func() {
				_, m, err := kv.Get("bare", &api.QueryOptions{WaitIndex: meta.LastIndex})
				meta = m
				seen <- err
			}()
			p.Value = fmt.Append(nil, i)
			if _, err := kv.Put(p, nil); err != nil {
				b.Fatal(err)
			}
			if err := <-seen; err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("two trees", func(b *testing.B) {
		other := join(b, config(s), "two")
		put(b, tree, "marker", "start")
		for i := 0; b.Loop(); i++ {
			put(b, tree, "marker", fmt.Sprint(i))
			for at(other, "a", "marker") != fmt.Sprint(i) {
				<-other.Folder("a").Changed()
			}
		}
	})
}

func follow(b *testing.B, s *consultest.Server, tree *fleet.Tree, prefix string) {
	put(b, tree, "marker", "start")
	_, meta, err := s.Client.KV().List(prefix, nil)
	if err != nil {
		b.Fatal(err)
	}
	bytes := 0
	for i := 0; b.Loop(); i++ {
		seen := make(chan error, 1)
		go func() {
			list, m, err := s.Client.KV().List(prefix, &api.QueryOptions{WaitIndex: meta.LastIndex})
			if err == nil {
				meta = m
				b.StopTimer()
				text, _ := json.Marshal(list)
				bytes += len(text)
				b.StartTimer()
			}
			seen <- err
		}()
		put(b, tree, "marker", fmt.Sprint(prefix, i))
		if err := <-seen; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(bytes)/float64(b.N), "bytes/change")
}

// Keys of other programs below the prefix are reported, left unchanged, and have no other effect.
func TestJunkOnConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{Memory: true})
	junk := []string{treePrefix + "a/", treePrefix + "other/x", treePrefix + "loose", "ironvip/v2/log/x", "ironvip/v2/log/x/1",
		"ironvip/v2/nodes/x", "ironvip/v2/loose", "ironvip/loose", "ironvip/v2/x/y", "ironvip/v1/tree/x"}
	places := map[string]string{"ironvip/v2/x/y": "ironvip/v2/x/", "ironvip/v2/log/x/1": "ironvip/v2/log/x/", "ironvip/v1/tree/x": "ironvip/v1/"}
	leave := func() {
		t.Helper()
		for _, key := range junk {
			if _, err := s.Client.KV().Put(&api.KVPair{Key: key, Value: []byte("{junk")}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	leave()
	one := join(t, config(s), "one")
	two := join(t, config(s), "two")
	put(t, one, "x", "1")
	leave()
	put(t, one, "x", "2")
	wait.Until(t, "the other follows", func() bool { return at(two, "a", "x") == "2" })
	named := map[string]bool{}
	for _, p := range one.Problems() {
		named[strings.TrimPrefix(p.Place, "consul:")] = true
	}
	for _, key := range junk {
		p, _, err := s.Client.KV().Get(key, nil)
		if err != nil || p == nil || string(p.Value) != "{junk" {
			t.Errorf("%s was touched: %v, %v", key, p, err)
		}
		if !named[cmp.Or(places[key], key)] {
			t.Errorf("%s is not named: %v", key, one.Problems())
		}
	}
}
