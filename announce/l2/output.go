package l2

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/announce/l2/claim"
	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/link"
	"github.com/ironvip/ironvip/announce/l2/wire"
)

// output is the Speaker as the Machine of a LAN sees it. The caller of the Machine holds mu.
type output struct {
	s   *Speaker
	lan *lan
}

func (o output) Open(a netip.Addr) { o.s.changes[a] = true }
func (o output) Shut(a netip.Addr) { o.s.changes[a] = false }

// Send sends a frame on all usable interfaces of the LAN, after the gate has been opened.
func (o output) Send(a netip.Addr, f claim.Frame) bool {
	s := o.s
	_ = s.changeGate() // it is tried again with the whole gate
	if f == claim.Announce && !s.isAlive() {
		return false
	}
	sent := true
	for _, l := range s.state.Links {
		if !l.Usable() || !o.lan.has(l) {
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

// Report reports a state.
func (o output) Report(a netip.Addr, st claim.State, r claim.Rival) {
	rep := Report{Addr: a, At: o.lan.At()}
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

// report calls the receiver of reports. The caller holds mu.
func (s *Speaker) report(r Report) {
	r.Since = time.Now()
	s.receive(r)
}

// isAlive reports whether the time of the last Refresh is not over. The caller holds mu.
func (s *Speaker) isAlive() bool { return time.Now().Before(s.alive) }

func (s *Speaker) socket(a netip.Addr) *wire.Socket {
	if a.Is4() {
		return s.arp
	}
	return s.nd
}

func (s *Speaker) linkName(index int) string {
	for _, l := range s.state.Links {
		if l.Index == index {
			return l.Name
		}
	}
	return ""
}

// changeGate tells the kernel what the machine has opened and closed since the last call. The caller
// holds mu.
func (s *Speaker) changeGate() error {
	if len(s.changes) == 0 {
		return nil
	}
	var open, shut []netip.Addr
	for a, opens := range s.changes {
		if opens {
			open = append(open, a)
		} else {
			shut = append(shut, a)
		}
	}
	s.changes = map[netip.Addr]bool{} // a map never shrinks
	err := s.gate.Change(context.Background(), open, shut)
	s.doubt(err)
	return err
}
