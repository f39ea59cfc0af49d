package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// Two hosts of one name each take what the other claimed for their own. One of
// them holds the name's row among the nodes; the other, refused it, tells of
// itself in a rival row beside it. So each sees a row of the other's session. What
// a host that is gone has left stays as it is until its session expires; a row
// that is written anew meanwhile is that of a host that lives.

// twins is what this host knows of others by its name.
type twins struct {
	look chan struct{} // has the census taken at once

	mu       sync.Mutex
	clear    string              // the session that had the name to itself in the last census; "" for none
	sighted  map[sighting]uint64 // rival rows, with the indexes at which they were first seen
	asHolder string              // whom else this host has found alive, by rival rows
	asRival  string              // and by the name's own row
	told     bool
}

// sighting is a row by another's session.
type sighting struct{ key, session string }

func newTwins() *twins {
	return &twins{look: make(chan struct{}, 1), sighted: map[sighting]uint64{}}
}

// OwnName reports whether no other host is in the fleet by this host's name, as
// far as one can know: some seconds ago its row among the nodes was this
// session's, and nobody else asked for it. Otherwise, what is in this host's name
// may be another's.
func (t *Tree) OwnName() bool {
	t.turn.mu.Lock()
	session := t.turn.session
	alive := session != "" && time.Since(t.turn.renewed) < sessionTTL
	t.turn.mu.Unlock()
	t.twins.mu.Lock()
	defer t.twins.mu.Unlock()
	return alive && session == t.twins.clear
}

// NameTaken reports whether another host is known to be in the fleet by this
// host's name: not before both have been there for some seconds. Unlike OwnName it
// gives a host that is alone the benefit of the doubt.
func (t *Tree) NameTaken() bool {
	t.twins.mu.Lock()
	defer t.twins.mu.Unlock()
	return t.twins.told
}

// rivals are the rows beside the name's own. No node's own row has such a key:
// names are escaped.
func (p paths) rivals(name string) string { return p.node(name) + "?" }

// taken has the census taken at once: this session has got the name's row.
func (w *twins) taken() {
	select {
	case w.look <- struct{}{}:
	default:
	}
}

// contested reports whether the last census found a rival row.
func (w *twins) contested() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sighted) > 0
}

// lives books that a row was seen, and reports whether it has been written since
// it was first seen. The caller holds mu.
func (w *twins) lives(seen map[sighting]uint64, p Pair) bool {
	at := sighting{p.Key, p.Session}
	first, known := w.sighted[at]
	if !known {
		first = p.Index
	}
	seen[at] = first
	return p.Index != first
}

// census looks for rival rows among those of all nodes.
func (w *twins) census(t *Tree, pairs []Pair) {
	t.turn.mu.Lock()
	own := t.turn.session
	t.turn.mu.Unlock()
	name, rivals := t.paths.node(t.o.Node), t.paths.rivals(t.o.Node)
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[sighting]uint64{}
	living, holder := "", ""
	for _, p := range pairs {
		if p.Key == name {
			holder = p.Session
		}
		if !strings.HasPrefix(p.Key, rivals) || p.Session == "" || p.Session == own {
			continue
		}
		if w.lives(seen, p) {
			living = describe(p)
		}
	}
	w.sighted, w.clear = seen, ""
	switch {
	case living != "":
		w.asHolder = living
	case len(seen) == 0:
		w.asHolder = ""
	}
	if len(seen) == 0 && holder == own {
		w.clear = own
	}
	w.tell(t)
}

// refused books whom this host finds in the name's row: "" when it has it itself.
func (w *twins) refused(t *Tree, by string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asRival = by
	w.tell(t)
}

// tell says once that there is another host by this name, and that there isn't
// any more. The caller holds mu.
func (w *twins) tell(t *Tree) {
	other := w.asRival
	if other == "" {
		other = w.asHolder
	}
	if other == "" {
		t.status.setProblem("twin", vip.Problem{})
		if w.told {
			t.log.Info("no other host is in the fleet by this host's name any more", "node", t.o.Node)
			t.o.Events.Add(event.Event{Kind: "fleet_name_free", Object: t.o.Node, Message: "no other host is in the fleet by this name any more"})
		}
		w.told = false
		return
	}
	problem := vip.Problem{Code: vip.CodeNameTaken, Place: "consul:" + t.paths.node(t.o.Node), Message: fmt.Sprintf("another host calls itself %q, too: %s", t.o.Node, other),
		Hint: "set node.name in ironvip.toml to another name on one of the hosts, and restart it"}
	t.status.setProblem("twin", problem)
	if !w.told {
		w.told = true
		t.log.Error("another host is in the fleet by this host's name", "node", t.o.Node, "other", other, "hint", problem.Hint)
		t.o.Events.Add(event.Event{Kind: "fleet_name_taken", Object: t.o.Node, Message: problem.Message})
	}
}

// describe says which host's row it is, as far as that tells of it.
func describe(p Pair) string {
	var n Node
	if json.Unmarshal(p.Value, &n) != nil || n.Since == 0 {
		return "its session in Consul is " + p.Session
	}
	return "its agent started at " + time.UnixMilli(n.Since).UTC().Format(time.RFC3339)
}

// rival is this session's row beside the name's own, while that is another's.
type rival struct {
	at    time.Time // when it was written last
	index uint64    // of that writing; 0: there is none
	first Pair      // the name's own row, as it was first seen with its session
}

// stand writes the rival row anew and looks who has the name's own, no more often than
// a session is renewed.
func (r *rival) stand(ctx context.Context, p *presence, value []byte) {
	t := p.tree
	if time.Since(r.at) < renewEvery {
		return
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key := t.paths.rivals(t.o.Node) + p.session
	out, err := t.o.KV.Txn(call, []Op{{Verb: Lock, Key: key, Value: value, Session: p.session}})
	if err != nil || len(out.Refused) > 0 {
		return
	}
	r.at, r.index = time.Now(), out.Index
	holder, _, err := t.o.KV.Get(call, t.paths.node(t.o.Node), Query{Consistent: true})
	switch {
	case err != nil || holder == nil || holder.Session == "": // about to be free
	case holder.Session != r.first.Session:
		r.first = *holder
	case holder.Index != r.first.Index:
		t.twins.refused(t, describe(*holder))
	}
}

// end removes the rival row: the name's own is this session's.
func (r *rival) end(ctx context.Context, p *presence) {
	t := p.tree
	t.twins.refused(t, "")
	if r.index == 0 {
		return
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := t.o.KV.Txn(call, []Op{{Verb: DeleteCas, Key: t.paths.rivals(t.o.Node) + p.session, Index: r.index}})
	if err == nil && len(out.Refused) == 0 {
		r.index = 0
	}
}
