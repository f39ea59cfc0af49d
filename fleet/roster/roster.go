// Package roster has the hosts of a fleet that are present, and those that are lost, as two folders of
// the fleet's tree. Each host therefore knows them all, and a host that joins or leaves costs each of
// the others one entry of the log.
//
// Its input are the leader's lists of the nodes that have a session in the store, which the leader makes
// anyway. The leader adds and removes the rows. A host that runs no probes says so in its own row. A
// lost host stays until an operator or the leader forgets it, with everything that is kept of it
// (Records). The package doesn't know what the rows are used for.
package roster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/table"
)

// Folder is the folder of the tree with a row for each host.
const Folder = "members"

const version = 1

// Folders returns the folders of the tree that a Roster needs.
func Folders() []string { return []string{Folder, LostFolder} }

// Member is one host that is present.
type Member struct {
	// NoProbes states that the host runs no health checks.
	NoProbes bool `json:"no_probes,omitempty"`
	// Format is the newest format of the tree that the host reads. This release has 0. A release that
	// stores a new field or a new kind of value has the next one, and writes it only once all hosts read
	// it, lost ones included: a host keeps the former value of a key that it can't read.
	Format int `json:"format,omitzero"`
}

// Row is a Member with its key.
type Row = fleet.Item[Member]

// KeyOf returns the key of the row of a node.
func KeyOf(node string) string { return url.PathEscape(node) }

// NodeOf returns the node of a row, or "" if its key is invalid.
func NodeOf(key string) string {
	node, err := url.PathUnescape(key)
	if err != nil || KeyOf(node) != key {
		return ""
	}
	return node
}

// Roster keeps the rows. It is safe for concurrent use.
type Roster struct {
	tree    *fleet.Tree
	own     string // the key of this host's row
	want    Member
	rows    *fleet.Collection[Member]
	lost    *fleet.Collection[Lost]
	records Records // nil: none
	log     *slog.Logger

	forgetAfter time.Duration // ForgetAfter, or less in tests

	// The following fields belong to Run.
	listed  <-chan struct{} // of the newest list with missing
	missing map[string]bool // keys of hosts with records that were neither present nor lost
	// forgetAt is when lost hosts may be forgotten at the earliest, by the monotonic clock.
	forgetAt map[lossID]time.Time
}

// New returns the roster of a tree that has the Folders. Node is this host and self its row. It
// changes nothing until Run.
func New(tree *fleet.Tree, node string, self Member, log *slog.Logger) *Roster {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Roster{tree: tree, own: KeyOf(node), want: self, log: log, forgetAfter: ForgetAfter, rows: fleet.NewCollection(tree, Folder, version, check[Member]),
		lost: fleet.NewCollection(tree, LostFolder, version, check[Lost])}
}

func check[V any](key string, _ V) error {
	if NodeOf(key) == "" {
		return fmt.Errorf("key %q is not a node's name", key)
	}
	return nil
}

// Rows returns the hosts that are present. On a host that is cut off from the store, they are the last
// known ones.
func (r *Roster) Rows() table.Reader[string, Row] { return r.rows.Rows() }

// Probing returns how many hosts are present and run health checks: those that balance traffic. It
// costs O(hosts).
func (r *Roster) Probing() (n int) {
	for _, row := range r.rows.Rows().All() {
		if !row.Value.NoProbes {
			n++
		}
	}
	return n
}

// WasThere reports whether this host was present before this run. Until it has joined the fleet, that
// is by the last known rows.
func (r *Roster) WasThere() bool {
	row, ok := r.rows.Get(r.own)
	select {
	case <-r.tree.Joined():
		return ok && row.Index < r.tree.JoinedAt()
	default:
		return ok
	}
}

// rowPause is how much later this host corrects its row on average, for each host of the fleet:
// after a start of many hosts that run no probes, they would all write at the same time.
const rowPause = 10 * time.Millisecond

// Run keeps the rows current while this host is the leader, and this host's row always, until the
// context ends. It returns the context's error.
func (r *Roster) Run(ctx context.Context) error {
	feed := r.rows.Rows().Watch()
	defer feed.Close()
	retry := time.NewTimer(0)
	defer retry.Stop()
	wait := backoff.Backoff{Lo: time.Second, Hi: 30 * time.Second}
	own := false // this host's row has to be corrected
	for ctx.Err() == nil {
		_, _, listed := r.tree.Present()
		batch, changed := feed.TryNext()
		for i := range batch {
			if batch[i].Value.Key == r.own {
				own = !batch[i].Deleted && batch[i].Value.Value != r.want
				if own {
					retry.Reset(rand.N(time.Second + 2*time.Duration(r.tree.Hosts())*rowPause))
				}
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			continue
		case <-changed:
			continue
		case <-listed:
		case <-retry.C:
		}
		batches, forget := r.due(time.Now())
		if own {
			batches = append(batches, r.put(r.own, r.want))
		}
		err := r.write(ctx, batches)
		for _, row := range forget {
			err = cmp.Or(err, r.forget(ctx, row))
		}
		if err != nil {
			r.log.Debug("hosts that are present not written; trying again", "err", err)
			retry.Reset(wait.Next())
			continue
		}
		wait.Reset()
	}
	return ctx.Err()
}

// due returns what the leader changes now, each batch on its own, and the lost hosts that it forgets.
func (r *Roster) due(now time.Time) (batches [][]fleet.Write, forget []LostRow) {
	names, sure, listed := r.tree.Present()
	if names == nil || !r.tree.Mine() {
		return nil, nil
	}
	present := make(map[string]bool, len(names))
	for name := range names {
		key := KeyOf(name)
		present[key] = true
		if _, bad := r.rows.Unreadable(key); bad {
			continue // it is among the tree's problems
		}
		var writes []fleet.Write
		if _, known := r.rows.Get(key); !known {
			writes = r.put(key, Member{})
		}
		batches = append(batches, append(writes, r.found(key)...))
	}
	if !sure {
		return batches, nil
	}
	for key, row := range r.rows.Rows().All() {
		if !present[key] {
			batches = append(batches, append(r.lose(key, now), r.rows.Remove(key, row.Index)))
		}
	}
	for _, key := range r.strays(present, listed) {
		batches = append(batches, r.lose(key, now))
	}
	return batches, r.overdue(now, now.Round(0))
}

// put returns the write of a row.
func (r *Roster) put(key string, m Member) []fleet.Write {
	row, _ := r.rows.Get(key)
	w, err := r.rows.Put(key, row.Index, m)
	if err != nil {
		return nil // a name that is no key can't be in the roster
	}
	return []fleet.Write{w}
}

// write commits the batches, each on its own. A conflict is no error: the next round sees the row.
func (r *Roster) write(ctx context.Context, batches [][]fleet.Write) error {
	var out []*fleet.Batch
	for _, writes := range batches {
		if len(writes) > 0 {
			out = append(out, &fleet.Batch{Writes: writes})
		}
	}
	if len(out) == 0 {
		return nil
	}
	return r.tree.Commit(ctx, out)
}
