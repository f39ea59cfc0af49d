package roster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/table"
)

// LostFolder is the folder of the tree with a row for each host that was present and is no longer.
const LostFolder = "lost"

// ForgetAfter is after how long the leader forgets a lost host. It is that of Consul's own members.
const ForgetAfter = 72 * time.Hour

// leastLost is for how long a leader must have known at least that a host is lost, by its monotonic
// clock. Meanwhile a wrong wall clock can be corrected, for example after a start.
const leastLost = time.Hour

// Lost is a host that was present and is no longer. The leader writes it when the host is missing in
// two lists, and removes it when the host is back or after ForgetAfter. A step of the leader's wall
// clock does not shorten that, see overdue.
type Lost struct {
	Since time.Time    `json:"since"`           // when the leader saw it last, by the leader's clock
	VIPs  []netip.Addr `json:"vips,omitempty"`  // that it announced, as far as the leader knows: the first ones
	Owned int          `json:"owned,omitempty"` // how many they were
	// Format is the newest format of the tree that the host has read.
	Format int `json:"format,omitzero"`
}

// LostRow is a Lost with its key.
type LostRow = fleet.Item[Lost]

// Records is what other packages keep of each host, by name.
type Records interface {
	// Recorded returns the hosts with a record of their own.
	Recorded() []string
	// Forget removes the records of a host. It is repeated after an error.
	Forget(ctx context.Context, node string) error
	// Announced returns the first VIPs that a host announced when its last heartbeat was received, and how many
	// they were.
	Announced(node string) (vips []netip.Addr, owned int)
}

// Reasons why Forget doesn't forget a host.
var (
	ErrUnknown = errors.New("unknown")
	ErrPresent = errors.New("present")
)

// Keep sets the records that end when a lost host is forgotten. Call it before Run.
func (r *Roster) Keep(records Records) { r.records = records }

// Lost returns the hosts that are lost. On a host that is cut off from the store, they are the last
// known ones.
func (r *Roster) Lost() table.Reader[string, LostRow] { return r.lost.Rows() }

// IsPresent reports whether a host is present.
func (r *Roster) IsPresent(node string) bool {
	_, ok := r.rows.Get(KeyOf(node))
	return ok
}

// Forget removes a lost host and its records. Every host may call it. The error wraps ErrUnknown or
// ErrPresent if the host isn't lost.
func (r *Roster) Forget(ctx context.Context, node string) error {
	if r.IsPresent(node) {
		return fmt.Errorf("node %s is %w", node, ErrPresent)
	}
	row, ok := r.lost.Get(KeyOf(node))
	if !ok {
		return fmt.Errorf("node %s is %w", node, ErrUnknown)
	}
	if err := r.forget(ctx, row); err != nil {
		return err
	}
	if _, still := r.lost.Get(row.Key); still { // it has changed meanwhile
		return fmt.Errorf("node %s: %w", node, fleet.ErrUnavailable)
	}
	return nil
}

// forget removes the records before the row, so that what fails is tried again.
func (r *Roster) forget(ctx context.Context, row LostRow) error {
	if r.records != nil {
		if err := r.records.Forget(ctx, NodeOf(row.Key)); err != nil {
			return err
		}
	}
	return r.write(ctx, [][]fleet.Write{{r.lost.Remove(row.Key, row.Index)}})
}

// lose returns the write that makes a host lost.
func (r *Roster) lose(key string, now time.Time) []fleet.Write {
	if _, bad := r.lost.Unreadable(key); bad {
		return nil // it is among the tree's problems
	}
	if _, known := r.lost.Get(key); known {
		return nil
	}
	node := NodeOf(key)
	was, _ := r.rows.Get(key)
	l := Lost{Since: now.Add(-r.tree.AwayFor(node)).UTC().Truncate(time.Millisecond), Format: was.Value.Format}
	if r.records != nil {
		l.VIPs, l.Owned = r.records.Announced(node)
	}
	w, err := r.lost.Put(key, 0, l)
	if err != nil {
		return nil // a name that is no key can't be in the roster
	}
	return []fleet.Write{w}
}

// found returns the write that ends the loss of a host.
func (r *Roster) found(key string) []fleet.Write {
	row, known := r.lost.Get(key)
	if !known {
		return nil
	}
	return []fleet.Write{r.lost.Remove(key, row.Index)}
}

// strays returns the hosts that are neither present nor lost and have records: they have left before
// the leader could see them. They must be missing in two lists, because a record may be newer than
// the newest list.
func (r *Roster) strays(present map[string]bool, listed <-chan struct{}) (keys []string) {
	if r.records == nil {
		return nil
	}
	missing := map[string]bool{}
	for _, node := range r.records.Recorded() {
		key := KeyOf(node)
		_, member := r.rows.Get(key)
		if _, lost := r.lost.Get(key); present[key] || member || lost {
			continue
		}
		if missing[key] = true; r.missing[key] {
			keys = append(keys, key)
		}
	}
	if listed != r.listed {
		r.listed, r.missing = listed, missing
	}
	return keys
}

// lossID identifies the loss of a host: one that is lost again has another row.
type lossID struct {
	key   string
	index uint64
}

// overdue returns the lost hosts to forget now: those that are lost for forgetAfter by the wall clock,
// and for what was left of that, or for leastLost, since this leader knows them. It measures the
// latter by the monotonic clock of now, so a step of the wall clock forgets nothing.
func (r *Roster) overdue(now, wall time.Time) (rows []LostRow) {
	earliest := map[lossID]time.Time{}
	for _, row := range r.lost.Rows().All() {
		id, left := lossID{row.Key, row.Index}, row.Value.Since.Add(r.forgetAfter).Sub(wall)
		at, known := r.forgetAt[id]
		if !known {
			at = now.Add(min(max(left, leastLost), r.forgetAfter))
		}
		if earliest[id] = at; left <= 0 && !now.Before(at) {
			rows = append(rows, row)
		}
	}
	r.forgetAt = earliest
	slices.SortFunc(rows, func(a, b LostRow) int { return cmp.Compare(a.Key, b.Key) })
	return rows
}
