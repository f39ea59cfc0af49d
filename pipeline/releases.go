package pipeline

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// releases are the deleted services with holdings to release, and the cooldown of each. The zero
// value is empty and ready to use.
type releases struct {
	order    queue
	cooldown map[vip.ServiceKey]time.Duration
	fresh    bool // one was added since the last try
}

// add adds a deleted service.
func (r *releases) add(k vip.ServiceKey, cooldown time.Duration) {
	r.again(k, cooldown)
	r.fresh = true
}

// again moves a service behind the others that wait.
func (r *releases) again(k vip.ServiceKey, cooldown time.Duration) {
	if r.cooldown == nil {
		r.cooldown = make(map[vip.ServiceKey]time.Duration)
	}
	r.cooldown[k] = cooldown
	r.order.Add(k)
}

func (r *releases) drop(k vip.ServiceKey) {
	delete(r.cooldown, k)
	r.order.Remove(k)
}

func (r *releases) len() int { return len(r.cooldown) }
