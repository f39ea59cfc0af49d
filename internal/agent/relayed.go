package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/takeover"
	"github.com/ironvip/ironvip/vip"
)

// relayed counts the connections that the predecessor relays. Only a proxy relays any.
type relayed struct {
	mu    sync.Mutex
	open  map[takeover.Backend]int64 // none is 0
	total map[vip.Protocol]int       // without UDP: its clients move with their next datagram, and nothing waits for them
	last  *takeover.Farewell         // of the predecessor; nil: it accepts clients
	until time.Time                  // set with last
	over  bool                       // it has ended
}

// count sets the number of connections to a backend.
func (r *relayed) count(c takeover.Count) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open, r.total = map[takeover.Backend]int64{}, map[vip.Protocol]int{}
	}
	if c.Frontend.Protocol != vip.UDP {
		r.total[c.Frontend.Protocol] += int(c.N - r.open[c.Backend])
	}
	if r.open[c.Backend] = c.N; c.N == 0 {
		delete(r.open, c.Backend)
	}
}

// counts returns the connections.
func (r *relayed) counts() (out []takeover.Count) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for b, n := range r.open {
		out = append(out, takeover.Count{Backend: b, N: n})
	}
	return out
}

// of returns the connections of a frontend. It costs O(backends with connections).
func (r *relayed) of(key vip.FrontendKey) map[netip.AddrPort]int {
	out := map[netip.AddrPort]int{}
	for _, c := range r.counts() {
		if c.Frontend == key {
			out[c.Addr] = int(c.N)
		}
	}
	return out
}

// retire records that the predecessor accepts no more clients. It returns the predecessor if it has ended, otherwise nil.
func (r *relayed) retire(last takeover.Farewell) *former {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last, r.until = &last, time.Now().Add(last.Within); r.over {
		return r.former()
	}
	return nil
}

// end records the end of the predecessor. It returns the predecessor if it was retired, otherwise nil.
func (r *relayed) end() *former {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over = true; r.last != nil {
		return r.former()
	}
	return nil
}

// now returns the predecessor, or nil if there is none, if it accepts clients, or if it has ended.
func (r *relayed) now() *former {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || r.over {
		return nil
	}
	return r.former()
}

func (r *relayed) former() *former {
	return &former{mode: configs.ModeProxy, process: r.last.PID, open: maps.Clone(r.total), until: r.until}
}

// predecessorRetired records that the predecessor accepts no more clients.
func (a *agent) predecessorRetired(farewell takeover.Farewell) {
	if !farewell.Relays {
		return // its connections are not in its process
	}
	a.events.Add(event.Event{Kind: "dataplane_retired", Object: configs.ModeProxy,
		Message: fmt.Sprintf("%s: new connections no longer go to process %d", replacesText(a.plane.about.Mode, configs.ModeProxy), farewell.PID)})
	a.reportEnd(a.relayed.retire(farewell))
}

// predecessorEnded records the end of the predecessor.
func (a *agent) predecessorEnded() {
	if a.plane.relays != nil {
		a.plane.relays.ended()
	}
	a.reportEnd(a.relayed.end())
}

func (a *agent) reportEnd(f *former) {
	if f == nil {
		return
	}
	message := fmt.Sprintf("%s: process %d has ended", replacesText(a.plane.about.Mode, f.mode), f.process)
	if total(f.open) > 0 {
		message += ", with " + connectionsText(f.open)
	}
	a.log.Info("predecessor ended", "pid", f.process, "connections_ended", total(f.open))
	a.events.Add(event.Event{Kind: "dataplane_removed", Object: f.mode, Message: message})
}

// replacesText says which dataplane replaces which.
func replacesText(mode, former string) string {
	if mode == former {
		return "another process takes over"
	}
	return fmt.Sprintf("%s replaces %s", mode, former)
}
