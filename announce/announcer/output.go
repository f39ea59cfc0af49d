package announcer

import (
	"iter"
	"net/netip"
	"sync"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
)

// output carries the announcements of one mode out. All calls come from the announcer's goroutine.
// None may block: results come through mailbox.post.
type output interface {
	// configure starts, changes or stops the output. It is called with each change of the settings.
	configure(s *announce.Settings) error
	// set announces a VIP as of now, or withdraws it. Former is what it was announced as, and the zero value if it
	// was not. Probe says that no host has announced the VIP before.
	set(former, now *announce.Announcement, probe bool)
	// act is called at the end of each step. Beat is set when this host is known to be well: an
	// output that would be wrong on a host that is cut off stops without it.
	act(beat bool)
	// complete is called once, when everything that was to be announced after the start is set.
	complete()
	// drain asks routers to avoid this host, or ends that.
	drain(on bool)
	// close ends the output and returns when nothing of it runs. Leave says that the host goes
	// down; otherwise the next process continues.
	close(leave bool)
}

// mailbox passes calls from other goroutines to the announcer's. It never blocks them.
type mailbox struct {
	mu    sync.Mutex
	calls []func()
	some  wake.Signal
}

func newMailbox() *mailbox { return &mailbox{some: wake.New()} }

func (m *mailbox) post(call func()) {
	m.mu.Lock()
	m.calls = append(m.calls, call)
	m.mu.Unlock()
	m.some.Set()
}

// run makes the calls that were posted.
func (m *mailbox) run() {
	m.mu.Lock()
	calls := m.calls
	m.calls = nil
	m.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// carry passes a changed announcement to the outputs. Former is its row before, and the zero value if
// there was none.
func (a *Announcer) carry(former, now announce.Announcement) {
	if former.Here && (!now.Here || former.Mode != now.Mode) {
		a.stats.Transitions++
		if o := a.outputs[former.Mode]; o != nil {
			o.set(&former, &announce.Announcement{Addr: former.Addr}, false)
		}
		former = announce.Announcement{}
	}
	if !now.Here || former.Here && former.Route == now.Route {
		return
	}
	probe := false
	if !former.Here {
		probe = now.New && a.born[now.Addr]
		delete(a.born, now.Addr)
		a.stats.Transitions++
	}
	if o := a.outputs[now.Mode]; o != nil {
		o.set(&former, &now, probe)
	}
}

// carries reports whether the output of a mode is to announce a VIP.
func (a *Announcer) carries(addr netip.Addr, mode announce.Mode) bool {
	n, _, _ := a.tables.Announcements.Get(addr)
	return n.Here && n.Mode == mode
}

// vips yields the VIPs that the output of a mode is to announce, also for one that starts again.
func (a *Announcer) vips(mode announce.Mode) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for addr, n := range a.tables.Announcements.All() {
			if n.Here && n.Mode == mode && !yield(addr) {
				return
			}
		}
	}
}

// announces reports whether the output of one of the modes is to announce any VIP.
func (a *Announcer) announces(modes ...announce.Mode) bool {
	for _, mode := range modes {
		for range a.vips(mode) {
			return true
		}
	}
	return false
}

// routeSet is the routes of an output: a table that its speaker follows.
type routeSet[V any] struct {
	*table.Table[netip.Prefix, V]
	whole func() // the table is ready
}

func newRouteSet[V any](t *table.Table[netip.Prefix, V]) routeSet[V] {
	return routeSet[V]{t, t.Initializer()}
}

func (r routeSet[V]) complete() { r.whole() }
