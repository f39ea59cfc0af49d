package dns

import (
	"sync"

	"github.com/ironvip/ironvip/vip"
)

// revisions are those at which the conflicts of each service last changed. A table doesn't say that of
// rows that it no longer has. They are kept until the service is gone.
type revisions struct {
	mu sync.Mutex
	of map[vip.ServiceKey]uint64
}

// change calls do, which changes a conflict of a service and returns the revision, or 0 if nothing
// changed. A reader that do wakes waits for the revision.
func (r *revisions) change(k vip.ServiceKey, do func() uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rev := do()
	if rev <= r.of[k] {
		return
	}
	if r.of == nil {
		r.of = make(map[vip.ServiceKey]uint64)
	}
	r.of[k] = rev
}

func (r *revisions) forget(k vip.ServiceKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, k)
}

func (r *revisions) get(k vip.ServiceKey) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[k]
}
