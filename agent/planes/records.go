package planes

import (
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/store"
)

// servingRecord is the dataplane that this host runs, as recorded in the state file once it serves.
type servingRecord struct {
	Mode string `json:"mode"`
}

const servingKey = "last"

func (p *Planes) servingNote() *store.Bucket[servingRecord] {
	return store.NewBucket[servingRecord](p.o.DB, "dataplane")
}

// leavingNote has the times at which the dataplanes that leave were replaced, by mode.
func (p *Planes) leavingNote() *store.Bucket[time.Time] {
	return store.NewBucket[time.Time](p.o.DB, "leaving dataplanes")
}

// last returns the dataplane that served last on this host, or "".
func (p *Planes) last() (string, error) {
	last, _, err := p.servingNote().Get(servingKey)
	return last.Mode, err
}

// noteServing records that the dataplane serves, unless it is the same as before. From then on, the one before leaves.
func (p *Planes) noteServing() {
	now := p.Mode()
	last, err := p.last()
	if err == nil && slices.Contains(otherModes(now), last) {
		p.leavesSince(last)
	}
	if err == nil && last != now {
		err = p.servingNote().Put(servingKey, servingRecord{now})
	}
	if err != nil {
		p.o.Log.Warn("dataplane in use not recorded: with mode auto, the next start may choose another", "err", err)
	}
	p.forgetLeaving(now)
}

// leavesSince returns when another dataplane was replaced: now, or as recorded by an agent that has ended in between.
func (p *Planes) leavesSince(mode string) time.Time {
	now := time.Now()
	since, known, err := p.leavingNote().Get(mode)
	if err == nil && known && !since.After(now) {
		return since
	}
	if err == nil {
		err = p.leavingNote().Put(mode, now)
	}
	if err != nil {
		p.o.Log.Warn("change of the dataplane not recorded: after a restart, connections of the one before have longer", "dataplane", mode, "err", err)
	}
	return now
}

// ranBefore reports whether another dataplane may have something in the kernel, by the records.
func (p *Planes) ranBefore(mode string) bool {
	if last, err := p.last(); err == nil && last == mode {
		return true
	}
	_, known, err := p.leavingNote().Get(mode)
	return err == nil && known
}

// forgetLeaving removes the record of a dataplane that has nothing left, or serves again.
func (p *Planes) forgetLeaving(mode string) {
	if _, known, err := p.leavingNote().Get(mode); err == nil && !known {
		return
	}
	if err := p.leavingNote().Delete(mode); err != nil {
		p.o.Log.Warn("record of an earlier dataplane not removed", "dataplane", mode, "err", err)
	}
}

func (p *Planes) hardStopAfter() time.Duration {
	return time.Duration(p.o.Config().Dataplane.HardStopAfter)
}
