package announcer

import (
	"net/netip"
	"sync"

	"github.com/ironvip/ironvip/announce"
)

// output carries the announcements of one mode out. All calls come from the announcer's goroutine.
// None may block: results come through mailbox.post.
type output interface {
	// configure starts, changes or stops the output. It is called with each change of the settings.
	configure(s *announce.Settings) error
	// set announces a VIP, or withdraws it. Probe says that no host has announced the VIP before.
	set(addr netip.Addr, here, probe bool)
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
	some  chan struct{}
}

func newMailbox() *mailbox { return &mailbox{some: make(chan struct{}, 1)} }

func (m *mailbox) post(call func()) {
	m.mu.Lock()
	m.calls = append(m.calls, call)
	m.mu.Unlock()
	select {
	case m.some <- struct{}{}:
	default:
	}
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

// carried is a VIP that an output was told to announce.
type carried struct {
	mode  announce.Mode
	probe bool
}

// carry tells the outputs about a changed announcement.
func (a *Announcer) carry(n announce.Announcement, gone bool) {
	here := n.Here && !gone
	former, was := a.carried[n.Addr]
	if was && (!here || former.mode != n.Mode) {
		delete(a.carried, n.Addr)
		a.stats.Transitions++
		if o := a.outputs[former.mode]; o != nil {
			o.set(n.Addr, false, false)
		}
		was = false
	}
	if here && !was {
		c := carried{n.Mode, n.New && a.born[n.Addr]}
		delete(a.born, n.Addr)
		a.carried[n.Addr] = c
		a.stats.Transitions++
		if o := a.outputs[n.Mode]; o != nil {
			o.set(n.Addr, true, c.probe)
		}
	}
}

// owned returns how many VIPs of a mode this host announces.
func (a *Announcer) owned(mode announce.Mode) (n int) {
	for _, c := range a.carried {
		if c.mode == mode {
			n++
		}
	}
	return n
}
