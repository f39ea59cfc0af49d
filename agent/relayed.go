package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/takeover"
	"github.com/ironvip/ironvip/vip"
)

// relaysPath is the folder with the sockets of processes that relay connections.
func relaysPath(cfg *configs.Config) string { return filepath.Join(cfg.Node.StateDir, "relays") }

// relayed counts the connections that other processes relay, and former dataplanes of this one. Only a proxy relays any. All
// of them are found at the start: the predecessor, and the ones before it.
type relayed struct {
	processes []*relaying // constant

	mu      sync.Mutex
	sums    map[takeover.Backend]int64 // of all processes; none is 0
	changed func(takeover.Count)       // is called with each changed sum, under mu; nil: nobody needs it
	retired bool                       // this agent serves all clients, and none of them accepts any
}

// relaying is one of the processes. The fields are guarded by the mutex of relayed.
type relaying struct {
	*takeover.Relaying
	pid   int
	until time.Time // it ends then
	open  map[takeover.Backend]int64
	total map[vip.Protocol]int // without UDP: its clients move with their next datagram, and nothing waits for them
	over  bool                 // it has ended
}

// find finds the processes.
func (r *relayed) find(ctx context.Context, cfg *configs.Config) error {
	found, err := takeover.FindRelays(ctx, relaysPath(cfg))
	for _, f := range found {
		p := &relaying{Relaying: f}
		r.processes = append(r.processes, p)
		r.state(p, f.State)
		for _, c := range f.Open {
			r.count(p, c)
		}
	}
	return err
}

// pids returns the processes, for the log.
func (r *relayed) pids() (out []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.processes {
		out = append(out, p.pid)
	}
	return out
}

// close ends the conversations with processes that are not followed.
func (r *relayed) close() {
	for _, p := range r.processes {
		p.Close()
	}
}

// attach calls changed with the present sums, and then with each one that changes.
func (r *relayed) attach(changed func(takeover.Count)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = changed
	for b, n := range r.sums {
		changed(takeover.Count{Backend: b, N: n})
	}
}

func (r *relayed) state(p *relaying, s takeover.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.pid, p.until = s.PID, time.Now().Add(s.Within)
}

// count sets the number of connections of a process to a backend.
func (r *relayed) count(p *relaying, c takeover.Count) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(p, c)
}

// set is count under mu.
func (r *relayed) set(p *relaying, c takeover.Count) {
	if p.open == nil {
		p.open, p.total = map[takeover.Backend]int64{}, map[vip.Protocol]int{}
	}
	if r.sums == nil {
		r.sums = map[takeover.Backend]int64{}
	}
	more := c.N - p.open[c.Backend]
	if c.Frontend.Protocol != vip.UDP {
		p.total[c.Frontend.Protocol] += int(more)
	}
	if p.open[c.Backend] = c.N; c.N == 0 {
		delete(p.open, c.Backend)
	}
	sum := r.sums[c.Backend] + more
	if r.sums[c.Backend] = sum; sum == 0 {
		delete(r.sums, c.Backend)
	}
	if r.changed != nil {
		r.changed(takeover.Count{Backend: c.Backend, N: sum})
	}
}

// counts returns the connections of all processes.
func (r *relayed) counts() (out []takeover.Count) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for b, n := range r.sums {
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

// endOf ends the connections to a backend. It doesn't wait.
func (r *relayed) endOf(b takeover.Backend) {
	for _, p := range r.processes {
		p.End(b)
	}
}

// retire records that none of the processes accepts clients any more. It returns all of them, and those that have ended.
func (r *relayed) retire() (all, ended []*former) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired = true
	for _, p := range r.processes {
		f := p.former()
		if all = append(all, f); p.over {
			ended = append(ended, f)
		}
	}
	return all, ended
}

// end records the end of a process. It returns the process if it was retired, otherwise nil, and whether it was the last one.
func (r *relayed) end(p *relaying) (ended *former, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.over, last = true, true
	for _, other := range r.processes {
		last = last && other.over
	}
	if r.retired {
		ended = p.former()
	}
	total := maps.Clone(p.total)
	for b := range p.open {
		r.set(p, takeover.Count{Backend: b})
	}
	p.total = total // what has ended with it
	return ended, last
}

// now returns the processes that have not ended, once they accept no clients.
func (r *relayed) now() (out []*former) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.processes {
		if r.retired && !p.over {
			out = append(out, p.former())
		}
	}
	return out
}

func (p *relaying) former() *former {
	return &former{mode: configs.ModeProxy, process: p.pid, open: maps.Clone(p.total), until: p.until}
}

// followRelayed follows the connections of other processes until ctx ends. The returned function waits for that.
func (a *agent) followRelayed(ctx context.Context) (wait func()) {
	var work sync.WaitGroup
	if a.plane.relays != nil {
		a.relayed.attach(a.plane.relays.add)
	}
	for _, p := range a.relayed.processes {
		work.Go(func() {
			p.Follow(ctx, func(s takeover.State) { a.relayed.state(p, s) }, func(c takeover.Count) { a.relayed.count(p, c) })
			if ctx.Err() == nil {
				a.relayEnded(p)
			}
		})
	}
	return work.Wait
}

// relayEnded records the end of a process.
func (a *agent) relayEnded(p *relaying) {
	ended, last := a.relayed.end(p)
	if last && a.plane.relays != nil {
		a.plane.relays.ended()
	}
	if ended != nil {
		a.reportEnd(ended)
	}
}

// relaysRetired reports that the processes accept no more clients.
func (a *agent) relaysRetired() {
	all, ended := a.relayed.retire()
	for _, f := range all {
		a.events.Add(event.Event{Kind: "dataplane_retired", Object: f.mode,
			Message: fmt.Sprintf("%s: new connections no longer go to %s", replacesText(a.plane.about.Mode, f.mode), f.where())})
	}
	for _, f := range ended {
		a.reportEnd(f)
	}
}

func (a *agent) reportEnd(f *former) {
	message := fmt.Sprintf("%s: %s has ended", replacesText(a.plane.about.Mode, f.mode), f.where())
	if total(f.open) > 0 {
		message += ", with " + connectionsText(f.open)
	}
	a.log.Info("process that relayed connections ended", "pid", f.process, "connections_ended", total(f.open))
	a.events.Add(event.Event{Kind: "dataplane_removed", Object: f.mode, Message: message})
}

// where returns "process 7".
func (f *former) where() string {
	if f.process == os.Getpid() {
		return fmt.Sprintf("the former dataplane of process %d", f.process)
	}
	return fmt.Sprintf("process %d", f.process)
}

// replacesText says which dataplane replaces which.
func replacesText(mode, former string) string {
	if mode == former {
		return "another process takes over"
	}
	return fmt.Sprintf("%s replaces %s", mode, former)
}
