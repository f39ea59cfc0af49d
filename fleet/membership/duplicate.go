package membership

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/vip"
)

// DuplicateNodeError says that another live host uses this host's ID or its node name.
type DuplicateNodeError struct {
	ID     string // set when it is the host id
	Name   string // this host's node name
	Holder string // names the other host
	hint   string
	place  string // the key of the lock
}

func (e *DuplicateNodeError) Error() string {
	if e.ID != "" {
		return fmt.Sprintf("host id %s is in use: %s has the same one", e.ID, e.Holder)
	}
	return fmt.Sprintf("node name %q is in use: %s has the same one", e.Name, e.Holder)
}

// Hint says what to do about it.
func (e *DuplicateNodeError) Hint() string { return e.hint }

// Problem is the error as `ironvip status` shows it.
func (e *DuplicateNodeError) Problem() vip.Problem {
	return vip.Problem{Code: vip.CodeNameTaken, Place: e.place, Message: e.Error(), Hint: e.hint}
}

// waitingError says that this host waits until the other one turns out to be alive or not.
type waitingError struct{ *DuplicateNodeError }

func (e waitingError) Error() string {
	return fmt.Sprintf("%v; waiting up to %v for its session to expire", e.DuplicateNodeError, liveAfter)
}

// duplicate describes the holder of the host's lock or of the node's row.
func (m *Member) duplicate(ctx context.Context, held *heldError) *DuplicateNodeError {
	e := &DuplicateNodeError{Name: m.o.Node, place: m.o.KV.Engine().Name + ":" + held.pair.Key, hint: "set node.name in ironvip.toml to another name on one of the two hosts, and restart it"}
	var row hostRow
	if held.pair == held.host {
		e.ID = m.o.Identity.ID
		_ = json.Unmarshal(held.pair.Value, &row)
		e.hint = "if this host is a copy of that one: systemctl stop ironvip, ironvip node new-id"
		if row.Node == m.o.Node {
			e.hint += ", set node.name in ironvip.toml to another name"
		}
		e.hint += ", systemctl start ironvip"
	} else {
		ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
		defer cancel()
		rows, _, _ := m.o.KV.List(ctx, m.o.Keys.Hosts, kv.Query{}) // without them, the session names it
		for _, p := range rows {
			if p.Session == held.pair.Session {
				_ = json.Unmarshal(p.Value, &row)
			}
		}
	}
	if row.Node == "" {
		e.Holder = "the owner of session " + held.pair.Session
		return e
	}
	e.Holder = fmt.Sprintf("node %q", row.Node)
	if row.Hostname != "" {
		e.Holder += " on host " + row.Hostname
	}
	if row.Address != "" {
		e.Holder += " (" + row.Address + ")"
	}
	e.Holder += ", started " + time.UnixMilli(row.Started).UTC().Format(time.RFC3339)
	return e
}
