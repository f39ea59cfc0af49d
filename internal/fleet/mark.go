package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
)

// mark is the one value beside the folders. It says which fleet's tree this is,
// so that an answer without it (a token that may not read, a store that lost
// everything) is never taken for an empty tree, and hosts don't follow another
// fleet's.
type mark struct {
	Version int    `json:"v"`
	Fleet   string `json:"fleet"`
}

// checkMark makes sure that the values read are those of this host's fleet, by
// the mark that was among them, or nil. The first host of all makes the mark.
func (t *Tree) checkMark(ctx context.Context, found *Pair) error {
	t.mu.Lock()
	known := t.mark
	t.mu.Unlock()
	if known == "" {
		known = t.cache.mark()
	}
	switch {
	case found == nil && known == "":
		return t.makeMark(ctx)
	case found == nil:
		return &advised{fmt.Errorf("%s is not there: the tree has been removed, or the token may not read it; going on with what is known", t.paths.mark),
			"to put it back see docs/operations.md, \"Restoring a fleet's keys\", before anything else; to drop it and " + t.paths.follow(known)}
	}
	m, err := decodeMark(found.Value)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", t.paths.mark, err)
	case known != "" && m.Fleet != known:
		return &advised{fmt.Errorf("%s says that this is the tree of fleet %s, and this host is of fleet %s; going on with what is known", t.paths.mark, m.Fleet, known),
			"to " + t.paths.follow(known)}
	}
	t.setMark(m.Fleet)
	return nil
}

// advised is an error of being out of touch with what to do about it, where that is
// not to see to Consul.
type advised struct {
	error
	do string
}

// follow says how to have the hosts of a fleet follow a tree that isn't marked as
// theirs.
func (p *paths) follow(fleet string) string {
	return fmt.Sprintf("have the hosts follow what is there now: consul kv put %s '%s'", p.mark, encodeMark(fleet))
}

func (t *Tree) setMark(fleet string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mark != fleet {
		t.mark = fleet
		t.cache.setMark(fleet)
	}
}

func (t *Tree) makeMark(ctx context.Context) error {
	fleet := rand.Text()[:12]
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// With an entry in it, the journal has an index of its own: Consul answers
	// about an empty prefix with the index of the whole store.
	head, _ := encodeEntry(t.o.Node, 1, 0, nil)
	out, err := t.o.KV.Txn(ctx, []Op{
		{Verb: Cas, Key: t.paths.mark, Value: []byte(encodeMark(fleet))},
		{Verb: Cas, Key: t.paths.head(rand.Text()[:12]), Value: head},
	})
	switch {
	case err != nil:
		return err
	case len(out.Refused) > 0:
		return errors.New("another host has just begun the tree")
	}
	t.setMark(fleet)
	return nil
}

func encodeMark(fleet string) string { return fmt.Sprintf(`{"v":1,"fleet":%q}`, fleet) }

func decodeMark(text []byte) (m mark, err error) {
	err = json.Unmarshal(text, &m)
	switch {
	case err != nil:
	case m.Version != 1:
		err = fmt.Errorf("version %d of the tree is not known here, only 1", m.Version)
	case m.Fleet == "":
		err = errors.New("names no fleet")
	}
	return m, err
}
