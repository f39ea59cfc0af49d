package overrides

import (
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// entry is a readable value of the store.
type entry struct {
	key     vip.BackendKey
	version uint64
	over    bool // it is no longer in effect: an operator has ended it, or it has expired
}

// receive writes changes of the store to the table.
func (o *Overrides) receive(items []registry.Item[Override]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, item := range items {
		if o.Store.Version(item.Key) == item.Version { // else a later item follows
			o.put(item)
		}
	}
}

// refresh writes the store's current value at a key to the table and returns it.
func (o *Overrides) refresh(at string) registry.Item[Override] {
	o.mu.Lock()
	defer o.mu.Unlock()
	item := o.Store.Get(at)
	o.put(item)
	return item
}

// recheck reads again the overrides with a stored value that had become unreadable.
func (o *Overrides) recheck() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for at := range o.kept {
		o.put(o.Store.Get(at))
	}
}

// put writes a value of the store to the table. An override stays in effect while its stored value
// is unreadable. The caller holds mu.
func (o *Overrides) put(item registry.Item[Override]) {
	at := item.Key
	if item.Version == 0 && o.Store.Unreadable(at) {
		o.kept[at] = struct{}{}
		return
	}
	delete(o.kept, at)
	old := o.entries[at]
	if old != nil && old.version == item.Version {
		return
	}
	delete(o.invalid, at)
	key, err := parseKey(at)
	var state vip.State
	if err == nil && item.Version != 0 {
		state, err = item.Value.state(at)
	}
	if err != nil {
		if item.Version != 0 {
			o.invalid[at] = vip.Problem{Code: vip.CodeStore, Place: at, Message: "stored backend state: " + err.Error(), Hint: "remove the stored value"}
			o.Log.Error("backend override not read", "key", at, "err", err)
		}
		return
	}
	if item.Version == 0 {
		o.drop(at)
		if o.Table.Delete(key) {
			o.publishEvent(key, "set to ready")
		}
		return
	}
	e := o.keep(at, key, item)
	was, _, set := o.Table.Get(key)
	switch row := rowOf(key, state, &item); {
	case e.over && set:
		o.Table.Delete(key)
		message := "set to ready" + o.by(row)
		if state != vip.Ready {
			message = "override expired: " + state.String() + o.by(row)
		}
		o.publishEvent(key, message)
	case !e.over:
		o.Table.Set(row)
		if !set || was.State != state || was.Until != row.Until {
			o.publishEvent(key, "set to "+state.String()+o.by(row)+until(row))
		}
	}
}

func rowOf(key vip.BackendKey, state vip.State, item *registry.Item[Override]) vip.BackendState {
	o := &item.Value
	return vip.BackendState{Backend: key, State: state, Since: vip.InstantOf(o.Since), Until: o.until(), Author: o.Author, Node: o.Node, Local: item.Local}
}

// keep records a readable value in memory. The caller holds mu.
func (o *Overrides) keep(at string, key vip.BackendKey, item registry.Item[Override]) *entry {
	e := o.entries[at]
	if e == nil {
		e = &entry{key: key}
		o.entries[at] = e
		o.of[key.Service] = append(o.of[key.Service], at)
	}
	e.version, e.over = item.Version, item.Value.Ended()
	o.expiry.Drop(at)
	if until := item.Value.until(); !e.over && !until.IsZero() {
		// The time left is at most what the operator asked for, even if the clock was set back while
		// no agent ran. It ends by the monotonic clock, which nobody sets.
		now := time.Now()
		left := min(until.Sub(vip.InstantOf(now)), until.Sub(vip.InstantOf(item.Value.Since)))
		if e.over = left <= 0; !e.over {
			o.expiry.Set(at, now.Add(left))
			o.sooner.Set()
		}
	}
	if e.over {
		o.sweepSoon(at)
	}
	return e
}

// drop forgets a value that the store no longer has. The caller holds mu.
func (o *Overrides) drop(at string) {
	e := o.entries[at]
	if e == nil {
		return
	}
	delete(o.entries, at)
	o.expiry.Drop(at)
	delete(o.missing, e.key)
	keys := o.of[e.key.Service]
	if keys = slices.DeleteFunc(keys, func(k string) bool { return k == at }); len(keys) == 0 {
		delete(o.of, e.key.Service)
		delete(o.removed, e.key.Service)
	} else {
		o.of[e.key.Service] = keys
	}
}

// expire takes the expired overrides out of the table. It returns the time until the next one.
func (o *Overrides) expire() (wait time.Duration, some bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for at := range o.expiry.Due(now) {
		o.expiry.Drop(at)
		e := o.entries[at]
		e.over = true
		if row, _, set := o.Table.Get(e.key); set {
			o.Table.Delete(e.key)
			o.publishEvent(e.key, "override expired: "+row.State.String()+o.by(row))
		}
		o.sweepSoon(at)
	}
	_, next, some := o.expiry.First()
	return next.Sub(now), some
}

// noteRemoved records the removed services that have overrides.
func (o *Overrides) noteRemoved(changes []table.Change[vip.Service]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range changes {
		key := changes[i].Value.Key
		if changes[i].Deleted && len(o.of[key]) > 0 {
			o.removed[key] = struct{}{}
			for _, at := range o.of[key] {
				o.sweepSoon(at)
			}
		}
	}
}

// publishEvent publishes an event about a changed override. It publishes nothing for overrides that
// were set before this host started, or for overrides of a backend that is gone. The caller holds
// mu.
func (o *Overrides) publishEvent(key vip.BackendKey, message string) {
	if !o.running || o.lookUp(key) != nil {
		return
	}
	o.Events.Add(event.Event{Kind: "backend_state", Service: key.Service.String(), Object: key.ID(), Message: message})
}

// by returns who set an override, and through which other node, as the end of a message.
func (o *Overrides) by(row vip.BackendState) (text string) {
	if row.Author != "" {
		text = " by " + row.Author
	}
	if row.Node != "" && row.Node != o.Node {
		text += " through node " + row.Node
	}
	if row.Local {
		text += " on this host only"
	}
	return text
}

// until returns when an override expires, as the end of a message.
func until(row vip.BackendState) string {
	if row.Until.IsZero() {
		return ""
	}
	return " until " + row.Until.Time().Format(time.RFC3339)
}
