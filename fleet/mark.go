package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treelog"
)

// mark is the one value of the tree outside of its folders. It names the fleet. An answer without
// the mark (a token without rights, a store that lost everything) is therefore never mistaken for
// an empty tree, and hosts don't follow another fleet's tree.
type mark struct {
	Version int    `json:"v"`
	Fleet   string `json:"fleet"`
}

// checkMark verifies by the mark, which is nil if there is none, that the tree belongs to this
// host's fleet. The first host of a fleet creates the mark, with a log entry after the given
// position. The tree is read up to the returned one.
func (t *Tree) checkMark(ctx context.Context, found *kv.Pair, at treelog.Position) (treelog.Position, error) {
	t.mu.Lock()
	known := t.mark
	t.mu.Unlock()
	if known == "" {
		known = t.cache.fleet
	}
	switch {
	case found == nil && known == "":
		return t.makeMark(ctx, at)
	case found == nil:
		return at, &advised{fmt.Errorf("%s is missing: the tree has been removed, or this host may not read it; going on with what is known", t.keys.Mark),
			"to put it back see docs/operations.md, \"Restoring a fleet's keys\", before anything else; to drop it and " + t.follow(known)}
	}
	m, err := decodeMark(found.Value)
	switch {
	case err != nil:
		return at, fmt.Errorf("%s: %w", t.keys.Mark, err)
	case known != "" && m.Fleet != known:
		return at, &advised{fmt.Errorf("%s says that this is the tree of fleet %s, and this host is of fleet %s; going on with what is known", t.keys.Mark, m.Fleet, known),
			"to " + t.follow(known)}
	}
	t.setMark(m.Fleet)
	return at, nil
}

// advised is an error with a hint other than to check the store.
type advised struct {
	error
	do string
}

func (a *advised) Hint() string { return a.do }

// follow is the hint to make the hosts of a fleet follow a tree with another mark, or with none.
func (t *Tree) follow(fleet string) string {
	return fmt.Sprintf("have the hosts follow what is there now: %s %s '%s'", t.o.KV.Engine().Put, t.keys.Mark, encodeMark(fleet))
}

func (t *Tree) setMark(fleet string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mark = fleet
}

func (t *Tree) makeMark(ctx context.Context, at treelog.Position) (treelog.Position, error) {
	fleet, id := rand.Text()[:12], rand.Text()[:12]
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	// The entry gives the log an index of its own. For a key that doesn't exist, Consul returns the
	// index of the newest change of any key in its KV store, also outside of the prefix.
	head, whole := treelog.Encode(t.o.Node, id, at, treelog.Content{})
	out, err := t.o.KV.Txn(ctx, []kv.Op{
		{Verb: kv.Cas, Key: t.keys.Mark, Value: []byte(encodeMark(fleet))},
		{Verb: kv.Cas, Key: t.keys.Head, Index: at.Index, Value: head},
		{Verb: kv.Set, Key: t.keys.Slot(at.Seq + 1), Value: whole},
	})
	switch {
	case err != nil:
		return at, err
	case len(out.Refused) > 0:
		return at, errors.New("another host has just begun the tree")
	}
	t.setMark(fleet)
	return treelog.Position{Seq: at.Seq + 1, Index: out.Index, ID: id}, nil
}

func encodeMark(fleet string) string { return fmt.Sprintf(`{"v":1,"fleet":%q}`, fleet) }

func decodeMark(text []byte) (m mark, err error) {
	err = json.Unmarshal(text, &m)
	switch {
	case err != nil:
	case m.Version != 1:
		err = fmt.Errorf("tree version %d not supported: this release reads 1", m.Version)
	case m.Fleet == "":
		err = errors.New("names no fleet")
	}
	return m, err
}
