package fleet

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/fleet/treekv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/fleet/treestatus"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// DefaultPrefix is where the tree is in the store.
const DefaultPrefix = "ironvip"

// Options are what a Tree needs.
type Options struct {
	KV    kv.Store
	Clock *table.Clock
	Node  string // this host's name, unique in the fleet
	// Identity distinguishes this host whatever its name. New replaces the zero Identity.
	Identity membership.Identity
	Prefix   string       // in the store, without slashes at its ends; "" is DefaultPrefix
	Folders  []string     // all folders
	Cache    *store.DB    // where the last known tree is kept for a start without the store; nil: nowhere
	Events   *event.Log   // nil drops them
	Log      *slog.Logger // nil discards
}

var _ Committer = (*Tree)(nil)

// Tree is this host's copy of the fleet's tree. It is safe for concurrent use.
type Tree struct {
	*membership.Member // of this host; it runs with the tree

	o              Options
	log            *slog.Logger
	store          treekv.Store
	keys           treekv.Keys // of kv
	snapshotWriter treekv.SnapshotWriter
	folders        map[string]*folder
	status         *treestatus.Status
	cache          cache
	writer         *writer
	grace          *time.Timer // starts the tree from the cache
	trust          kv.Trust    // for blocking queries

	// reading is held by a full read that replaces the tables, and by the writer from sending a
	// transaction until its outcome is in the tables. Otherwise the full read could undo what
	// was written meanwhile.
	reading lock

	mu        sync.Mutex // guards what follows, and the writing of tables
	known     tombstones
	lookups   int              // reads of single keys in progress; tombstones are kept for them
	high      uint64           // the highest index that the tables have reached
	at        treelog.Position // the log up to there is in the tables
	compared  comparison
	mark      string             // the fleet's name; "" while unknown
	loaded    bool               // the folders are ready
	prevented bool               // they must not become so from the cache
	held      context.CancelFunc // ends the follower's blocking query; nil if there is none
	asked     bool               // the store is to be asked, instead of waiting for a change
	lastKick  time.Time
	rereads   []chan error // callers of Reread that wait

	follower  follower
	snapshots chan bool // has a value once this host may hold the lock of the snapshot: whether to write one
	kicks     wake.Signal
	ended     chan struct{}
}

// folder is one table of the tree.
type folder struct {
	name   string
	rows   *table.Table[string, Entry]
	digest treelog.Digest // of the rows
	ready  func()
	views  []view
}

// view is a Collection's interface to its tree. Its methods are called under the tree's lock.
type view interface {
	put(Entry)
	remove(key string)
	problems() []vip.Problem
	ready()
}

// New returns a tree. It is empty until Run.
func New(o Options) *Tree {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	keys := treekv.NewKeys(o.Prefix)
	t := &Tree{
		o:         o,
		log:       o.Log,
		keys:      keys,
		store:     treekv.Store{KV: o.KV, Keys: keys},
		folders:   map[string]*folder{},
		status:    treestatus.New(),
		kicks:     wake.New(),
		snapshots: make(chan bool, 1),
		ended:     make(chan struct{}),
		reading:   make(lock, 1),
	}
	t.Member = membership.New(membership.Options{
		KV: o.KV, Trust: &t.trust, Node: o.Node, Identity: o.Identity, Events: o.Events, Log: o.Log,
		Keys:  membership.Keys{Hosts: t.keys.Hosts, Nodes: t.keys.Nodes, Leader: t.keys.Leader, Head: t.keys.Head},
		Retry: t.kicks, Hold: t.hold, Stale: t.setStale, Duplicate: t.status.SetDuplicate, Reached: t.reachedIndex, Wake: t.wake,
	})
	t.snapshotWriter = treekv.SnapshotWriter{Store: t.store, Session: t.Session, Node: o.Node, Log: o.Log}
	t.writer = newWriter(t)
	t.follower = follower{tree: t, pace: rate.NewLimiter(rate.Every(minPause), burst)}
	t.known.index = map[string]uint64{}
	for _, name := range o.Folders {
		rows := table.New(o.Clock, func(e *Entry) string { return e.Key }, func(a, b Entry) bool {
			return a.Index == b.Index && bytes.Equal(a.Value, b.Value)
		})
		t.folders[name] = &folder{name: name, rows: rows, ready: rows.Initializer()}
	}
	return t
}

// Run keeps the tree in step with the store until the context ends, gives back what the host
// holds in the store, and returns the context's error. It returns a *membership.DuplicateNodeError when
// another live host has this host's id or name, and this one has not begun: the folders are not
// ready then, and nothing was written. It is called once.
func (t *Tree) Run(ctx context.Context) error {
	defer close(t.ended)
	var err error
	if t.cache, err = openCache(t.o.Cache); err != nil {
		t.log.Warn("cache incomplete: some of the last known tree can't be read", "err", err)
	}
	group, running := parallel.NewGroup(ctx)
	for _, f := range t.folders {
		if t.cache.bucket != nil {
			group.Run(running, t.keepFolder(f))
		}
	}
	t.grace = time.AfterFunc(GracePeriod, t.startFromCache)
	defer t.grace.Stop()
	group.Go(func() error { return t.Member.Run(running) })
	group.Run(running, t.follower.run)
	group.Run(running, t.writer.run)
	group.Run(running, t.runSnapshots)
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// Nodes reads the fleet's nodes from the store, sorted by name. Invalid rows are left out.
func (t *Tree) Nodes(ctx context.Context) ([]membership.Node, error) {
	nodes, err := t.Member.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
	return nodes, nil
}

// Folder returns a folder's entries. It is ready once they have been read from the store, or, if
// Consul isn't available for GracePeriod, from the cache.
func (t *Tree) Folder(name string) table.Reader[string, Entry] { return t.folders[name].rows }

// ready makes all folders ready. The caller holds mu.
func (t *Tree) ready() {
	if t.loaded {
		return
	}
	t.loaded, t.cache.kept = true, nil
	for _, f := range t.folders {
		f.ready()
		for _, v := range f.views {
			v.ready()
		}
	}
}

// locate returns the folder and key of a path below the tree's ("leases/192.0.2.1"), or nil for a path
// that belongs to no folder.
func (t *Tree) locate(path string) (f *folder, key string) {
	name, key, _ := strings.Cut(path, "/")
	if f = t.folders[name]; f == nil || checkKey(key) != nil {
		return nil, ""
	}
	return f, key
}

// position returns the place in the log up to which the tables are current.
func (t *Tree) position() treelog.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// advance applies entries of the log, as far as they are after the tables' position: this host may
// have written some of them meanwhile. The caller holds mu.
func (t *Tree) advance(entries []treelog.Entry) {
	for len(entries) > 0 && entries[0].Seq <= t.at.Seq {
		entries = entries[1:]
	}
	for len(entries) > 0 {
		t.compare(entries[0])
		// Up to the next entry with digests, to be compared then.
		n := 1
		for n < len(entries) && entries[n].Digests == nil {
			n++
		}
		for _, c := range treelog.Latest(entries[:n]) {
			t.apply(c)
		}
		t.at, entries = entries[n-1].Position, entries[n:]
	}
	t.high = max(t.high, t.at.Index)
}

// apply applies a change to the tables, unless they have a newer one. The caller holds mu.
func (t *Tree) apply(c treelog.Change) {
	f, key := t.locate(c.Path)
	if f == nil || c.Index < t.knownIndex(f, key, c.Path) {
		return
	}
	if c.Value == nil {
		t.remove(f, key, c.Path, c.Index)
	} else {
		t.put(f, c.Path, Entry{Key: key, Value: c.Value, Index: c.Index})
	}
}

// put sets an entry in the tables, and reports whether that changed them. The caller holds mu.
func (t *Tree) put(f *folder, path string, e Entry) (changed bool) {
	before := f.rows.Revision()
	old, _, existed := f.rows.Get(e.Key)
	f.rows.Set(e)
	t.known.forget(path)
	if f.rows.Revision() == before {
		return false
	}
	if existed {
		f.digest.Flip(path, old.Index)
	}
	f.digest.Flip(path, e.Index)
	t.compared.newest = max(t.compared.newest, e.Index)
	for _, v := range f.views {
		v.put(e)
	}
	return true
}

func (t *Tree) remove(f *folder, key, path string, index uint64) {
	t.known.add(path, index)
	old, _, _ := f.rows.Get(key)
	if !f.rows.Delete(key) {
		return
	}
	f.digest.Flip(path, old.Index)
	t.compared.newest = max(t.compared.newest, index)
	for _, v := range f.views {
		v.remove(key)
	}
}

// knownIndex returns up to which index the tables are current for a key.
func (t *Tree) knownIndex(f *folder, key, path string) uint64 {
	if e, _, ok := f.rows.Get(key); ok {
		return e.Index
	}
	return t.known.index[path]
}

// lock is a mutex with a context.
type lock chan struct{}

func (l lock) take(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l lock) give() { <-l }

// tombstones are the removals that older changes could still undo.
type tombstones struct {
	index map[string]uint64
	queue []tombstone // roughly ordered by index
}

type tombstone struct {
	path  string
	index uint64
}

func (g *tombstones) add(path string, index uint64) {
	g.index[path] = index
	g.queue = append(g.queue, tombstone{path, index})
}

func (g *tombstones) forget(path string) { delete(g.index, path) }

// drop drops the removals up to index.
func (g *tombstones) drop(index uint64) {
	i := 0
	for ; i < len(g.queue) && g.queue[i].index <= index; i++ {
		if g.index[g.queue[i].path] <= index {
			delete(g.index, g.queue[i].path)
		}
	}
	if g.queue = g.queue[i:]; len(g.queue) == 0 {
		g.queue = nil
	}
}
