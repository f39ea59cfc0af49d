package probe

import (
	"time"

	"github.com/ironvip/ironvip/internal/table"
)

// batchPause is the least time between two writes to the table. The first change is written at
// once; those that follow are collected, because a rack that fails changes many rows within a
// second, and each write costs downstream work.
const batchPause = 200 * time.Millisecond

// publisher writes changed rows to the table in batches. The engine's lock guards it.
type publisher struct {
	results *table.Table[Target, Result]
	changed []*target
	next    time.Duration // earliest next write
}

// add collects a target whose row changed.
func (p *publisher) add(t *target) { p.changed = append(p.changed, t) }

// write writes the collected rows if it is time, and returns when to call it again at the latest.
func (p *publisher) write(now time.Duration, c *counters) (next time.Duration) {
	switch {
	case len(p.changed) == 0:
		return now + idle
	case now < p.next:
		return p.next
	}
	var rows []Result
	for _, t := range p.changed {
		if t.changed = false; !t.stopped {
			rows = append(rows, t.state.row(t.Target))
		}
	}
	p.results.SetAll(rows)
	c.batches++
	c.changes += uint64(len(rows))
	p.changed = nil
	p.next = now + batchPause
	return now + idle
}
