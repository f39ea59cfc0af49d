package announcer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/l2"
)

// l2Output answers ARP and neighbor discovery for the VIPs that this host owns.
type l2Output struct {
	a      *Announcer
	record string // file of l2.Config.Record
	// removeGate is l2.Remove. Tests replace it.
	removeGate func(ctx context.Context, record string) error
	ran        bool // this process has announced at layer 2
	clean      bool // nothing is left in the kernel

	speaker *l2.Speaker // nil: off
	stop    context.CancelFunc
	running sync.WaitGroup

	unsent  uint64              // frames of earlier speakers that the kernel had no room for
	wanted  []string            // the interfaces
	links   map[string]l2.State // by name
	release []netip.Addr        // since the last act
}

func newL2(a *Announcer, record string) *l2Output {
	return &l2Output{a: a, record: record, removeGate: l2.Remove, links: map[string]l2.State{}}
}

func (o *l2Output) configure(s *announce.Settings) error {
	switch {
	case !s.Uses(announce.L2):
		o.end()
		o.remove()
		return nil
	case len(s.Interfaces) == 0: // the gate stays: other hosts announce the VIPs
		o.end()
		return errors.New("no interface to announce VIPs on")
	}
	c := l2.Config{Interfaces: s.Interfaces, Pools: s.Ranges(announce.L2), Device: s.Device, DeadMan: s.Timing().Handover, Record: o.record, Log: o.a.log,
		Report: func(r l2.Report) { o.a.mail.post(func() { o.report(r) }) }}
	if !slices.Equal(o.wanted, s.Interfaces) {
		o.wanted = slices.Clone(s.Interfaces)
		for name := range o.links {
			if !slices.Contains(o.wanted, name) {
				delete(o.links, name)
			}
		}
		o.checkLinks()
	}
	if o.speaker != nil {
		return o.speaker.Reconfigure(c)
	}
	speaker, err := l2.New(context.Background(), c)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	o.speaker, o.stop, o.ran, o.clean = speaker, stop, true, false
	o.running.Go(func() {
		if err := speaker.Run(ctx); ctx.Err() == nil {
			o.a.mail.post(func() { o.failed(speaker, err) })
		}
	})
	for addr := range o.a.vips(announce.L2) {
		o.a.problems.set(ownProblem, speaker.Own(addr, false))
	}
	return nil
}

const ownProblem = "l2 address"

// failed starts again after the speaker has ended by itself.
func (o *l2Output) failed(speaker *l2.Speaker, err error) {
	if o.speaker != speaker {
		return
	}
	o.a.log.Error("layer 2 ended; starting it again", "err", err)
	o.end()
	o.a.problems.set(announce.L2.String(), o.configure(&o.a.settings))
}

// end ends the speaker with a closed gate.
func (o *l2Output) end() {
	if o.speaker == nil {
		return
	}
	o.stop()
	o.running.Wait()
	o.unsent += o.speaker.Busy()
	o.speaker = nil
	clear(o.links)
	o.wanted = nil
	for place := range o.a.tables.Announced.All() {
		o.a.tables.Announced.Delete(place)
	}
}

// remove removes the gate, also that of an earlier run: this host no longer announces at layer 2.
func (o *l2Output) remove() {
	if o.clean {
		return
	}
	err := o.removeGate(context.Background(), o.record)
	if err != nil && !o.ran { // there may be no nftables, and nothing to remove
		o.a.log.Warn("remove the gate of an earlier run", "err", err)
		err = nil
	}
	o.clean = err == nil
	o.a.problems.set("l2 gate", err)
}

func (o *l2Output) set(addr netip.Addr, here, probe bool) {
	if !here {
		o.release = append(o.release, addr)
		return
	}
	if o.speaker != nil {
		o.a.problems.set(ownProblem, o.speaker.Own(addr, probe))
	}
}

// act releases the VIPs that were given up, before other hosts learn it, and keeps the gate open.
func (o *l2Output) act(beat bool) {
	if o.speaker == nil {
		return
	}
	if len(o.release) > 0 {
		release := slices.DeleteFunc(o.release, func(addr netip.Addr) bool { return o.a.carries(addr, announce.L2) })
		o.a.problems.set("l2 release", o.speaker.Release(release...))
		o.release = reuse(o.release)
	}
	if !beat {
		return
	}
	err := o.speaker.Refresh()
	if errors.Is(err, l2.ErrLapsed) {
		// This process did not run, and others may have taken over. The next step decides anew.
		o.a.log.Error("the kernel gate had closed: this process has not refreshed it in time")
		o.a.stats.Pauses++
		o.a.core.listen(time.Now())
		o.a.mail.post(func() {})
		err = nil
	}
	o.a.problems.set("l2 refresh", err)
}

func (o *l2Output) complete() {}

func (o *l2Output) drain(bool) {}

// reannounce repeats announcements for hosts that may have missed them.
func (o *l2Output) reannounce() {
	if o.speaker != nil {
		o.speaker.Reannounce()
	}
}

// busy returns how many frames the kernel had no room for.
func (o *l2Output) busy() uint64 {
	if o.speaker == nil {
		return o.unsent
	}
	return o.unsent + o.speaker.Busy()
}

// close ends the speaker with a closed gate, which remains: this host stays silent.
func (o *l2Output) close(bool) { o.end() }

// report shows a state of the speaker.
func (o *l2Output) report(r l2.Report) {
	switch {
	case o.speaker == nil:
	case r.Addr.IsValid():
		place := announce.Place{Addr: r.Addr, At: placeOf(o.wanted)}
		if r.State == l2.Released {
			o.a.tables.Announced.Delete(place)
			return
		}
		if r.State == l2.Conflict {
			o.a.stats.Conflicts++
			o.a.log.Error("address conflict", "vip", r.Addr, "interface", r.Interface, "reason", r.Reason)
		}
		reason := r.Reason
		if r.Interface != "" {
			reason = strings.TrimSpace("at " + r.Interface + ": " + reason)
		}
		o.a.tables.Announced.Set(announce.Announced{Place: place, State: string(r.State), Reason: reason, Since: r.Since})
	case r.Interface != "":
		o.links[r.Interface] = r.State
		o.checkLinks()
	default:
		var problem error
		if r.State == l2.GateFailed {
			problem = errors.New(r.Reason)
		}
		o.a.problems.set("l2 gate", problem)
		if r.State == l2.GateRestored {
			o.a.stats.Restored++
			o.a.log.Warn("the gate was changed by another program, and is restored", "reason", r.Reason)
		}
	}
}

// placeOf names the interfaces as one place: each VIP is announced on all of them.
func placeOf(interfaces []string) string { return strings.Join(interfaces, ",") }

// checkLinks gives all VIPs up while none of the interfaces works.
func (o *l2Output) checkLinks() {
	var down []string
	for _, name := range o.wanted {
		state, known := o.links[name]
		if !known || state == l2.LinkUp {
			o.setOffline("")
			return
		}
		down = append(down, fmt.Sprintf("%s: %s", name, state))
	}
	o.setOffline(strings.Join(down, ", "))
}

func (o *l2Output) setOffline(why string) {
	if o.a.core != nil {
		o.a.core.decider.SetOffline(why)
	}
	var problem error
	if why != "" {
		problem = errors.New(why)
	}
	o.a.problems.set("l2 interfaces", problem)
}
