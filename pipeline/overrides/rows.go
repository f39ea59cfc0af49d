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
	key     vip.OverrideKey
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
	var row vip.BackendState
	if err == nil && item.Version != 0 {
		row, err = item.Value.row(at)
		row.Local = item.Local
	}
	if err != nil {
		if item.Version != 0 {
			o.invalid[at] = vip.Problem{Code: vip.CodeStore, Place: at, Message: "stored override: " + err.Error(), Hint: "remove the stored value"}
			o.Log.Error("override not read", "key", at, "err", err)
		}
		return
	}
	if item.Version == 0 {
		o.drop(at)
		if o.Table.Delete(key) {
			o.publishEvent(key, ended(key))
		}
		return
	}
	e := o.keep(at, key, item)
	was, _, set := o.Table.Get(key)
	switch {
	case e.over && set:
		o.Table.Delete(key)
		message := ended(key) + o.by(row)
		if row.State != vip.Ready {
			message = "override expired: " + row.Sets() + o.by(row)
		}
		o.publishEvent(key, message)
	case !e.over:
		o.Table.Set(row)
		if !set || was.State != row.State || was.Weight != row.Weight || was.Until != row.Until {
			o.publishEvent(key, "set to "+row.Sets()+o.by(row)+until(row))
		}
	}
}

// ended returns the begin of the message of an override that an operator has ended.
func ended(key vip.OverrideKey) string {
	if key.Group != "" {
		return "set to the weight of the source"
	}
	return "set to ready"
}

// keep records a readable value in memory. The caller holds mu.
func (o *Overrides) keep(at string, key vip.OverrideKey, item registry.Item[Override]) *entry {
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
			o.publishEvent(e.key, "override expired: "+row.Sets()+o.by(row))
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
// were set before this host started, or for overrides of a backend or group that is gone. The caller holds
// mu.
func (o *Overrides) publishEvent(key vip.OverrideKey, message string) {
	if !o.running || o.lookUp(key) != nil {
		return
	}
	e := event.Event{Kind: "backend_state", Service: key.Service.String(), Object: key.ID(), Message: message}
	if key.Group != "" {
		e.Kind = "group_weight"
	}
	o.Events.Add(e)
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
