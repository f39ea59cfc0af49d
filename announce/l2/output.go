package l2

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce/l2/claim"
	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/link"
	"github.com/ironvip/ironvip/announce/l2/wire"
)

// output is the Speaker as its Machine sees it.
type output struct{ s *Speaker }

func (o output) Open(a netip.Addr) { o.s.open = append(o.s.open, a) }
func (o output) Shut(a netip.Addr) { o.s.shut = append(o.s.shut, a) }

// Send sends a frame on all usable interfaces, after the gate has been opened.
func (o output) Send(a netip.Addr, f claim.Frame) bool {
	s := o.s
	s.changeGate()
	if f == claim.Announce && !s.isAlive() {
		return false
	}
	sent := true
	for _, l := range s.seen.Links {
		if !l.Usable() {
			continue
		}
		s.buffer = appendFrame(s.buffer[:0], l, a, f)
		err := s.socket(a).Send(l.Index, s.buffer)
		switch {
		case errors.Is(err, wire.ErrBusy):
			sent = false
		case err != nil: // the interface has just gone, and its event follows
			s.log.Debug("send a frame for an address", "addr", a, "interface", l.Name, "err", err)
		}
	}
	return sent
}

func appendFrame(b []byte, l link.Link, a netip.Addr, f claim.Frame) []byte {
	switch f {
	case claim.Announce:
		return frame.AppendAnnounce(b, l.MAC, a)
	case claim.Verify:
		if b = frame.AppendVerify(b, l.MAC, l.Source, a); len(b) > 0 {
			return b
		}
	}
	return frame.AppendProbe(b, l.MAC, a)
}

// Report queues the report of a state.
func (o output) Report(a netip.Addr, st claim.State, r claim.Rival) {
	rep := Report{Addr: a}
	switch st {
	case claim.Waiting:
		rep.State, rep.Reason = Waiting, "no usable interface"
		if !o.s.isAlive() {
			rep.Reason = "the gate is closed until the first refresh"
		}
	case claim.Probing:
		rep.State = Probing
	case claim.Announced:
		rep.State = Announced
	case claim.Conflict:
		rep.State, rep.MAC, rep.Interface = Conflict, r.MAC, o.s.linkName(r.Link)
		rep.Reason = fmt.Sprintf("%v has the address, too", r.MAC)
	}
	o.s.report(rep)
}

func (s *Speaker) report(r Report) {
	r.Since = time.Now()
	s.reports = append(s.reports, r)
}

// deliver calls the receiver of reports.
func (s *Speaker) deliver() {
	for _, r := range s.reports {
		s.receive(r)
	}
	s.reports = s.reports[:0]
}

func (s *Speaker) isAlive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.alive)
}

func (s *Speaker) socket(a netip.Addr) *wire.Socket {
	if a.Is4() {
		return s.arp
	}
	return s.nd
}

func (s *Speaker) linkName(index int) string {
	for _, l := range s.seen.Links {
		if l.Index == index {
			return l.Name
		}
	}
	return ""
}

// changeGate tells the kernel what the machine has opened and closed since the last call.
func (s *Speaker) changeGate() {
	if len(s.open)+len(s.shut) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The caller may have released an address that the machine has just opened.
	open := slices.DeleteFunc(s.open, func(a netip.Addr) bool { _, ok := s.wanted[a]; return !ok })
	s.doubt(s.gate.Change(context.Background(), open, s.shut))
	s.open, s.shut = s.open[:0], s.shut[:0]
}
