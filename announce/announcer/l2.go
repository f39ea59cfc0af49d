package announcer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/internal/backoff"
)

// l2Speaker announces addresses: l2.Speaker.
type l2Speaker interface {
	Run(ctx context.Context) error
	Reconfigure(l2.Config) error
	Own(addr netip.Addr, probe bool) error
	Release(...netip.Addr) error
	Refresh() error
	Reannounce()
	Busy() uint64
}

// l2Output answers ARP and neighbor discovery for the VIPs that this host owns.
type l2Output struct {
	a      *Announcer
	record string // file of l2.Config.Record
	// open is l2.New, and removeGate is l2.Remove. Tests replace them.
	open       func(context.Context, l2.Config) (l2Speaker, error)
	removeGate func(ctx context.Context, record string) error
	ran        bool // this process has announced at layer 2
	clean      bool // nothing is left in the kernel

	speaker l2Speaker // nil: off, or absent
	began   time.Time // of the speaker
	stop    context.CancelFunc
	running sync.WaitGroup
	absent  error           // why there is no speaker although VIPs are to be announced; nil: there is, or none is needed
	retry   *time.Timer     // the next start of a speaker; nil: none is planned
	pause   backoff.Backoff // before it

	unsent  uint64              // frames of earlier speakers that the kernel had no room for
	links   map[string]l2.State // by name
	down    []string            // of linksDown, as the decision knows it
	release []netip.Addr        // since the last act
}

func newL2(a *Announcer, record string) *l2Output {
	return &l2Output{a: a, record: record, removeGate: l2.Remove, links: map[string]l2.State{},
		open:  func(ctx context.Context, c l2.Config) (l2Speaker, error) { return l2.New(ctx, c) },
		pause: backoff.Backoff{Lo: 100 * time.Millisecond, Hi: 10 * time.Second}}
}

func (o *l2Output) configure(s *announce.Settings) error {
	o.cancelRetry()
	err := o.apply(s)
	if o.absent = nil; o.speaker == nil {
		o.absent = err
	}
	o.checkOffline()
	return err
}

// apply starts, changes or ends the speaker.
func (o *l2Output) apply(s *announce.Settings) error {
	if !s.Uses(announce.L2) {
		o.end()
		o.remove()
		return nil
	}
	c := l2.Config{LANs: s.LANs, Device: s.Device, DeadMan: s.Timing().Handover, Record: o.record, Log: o.a.log,
		Report: func(r l2.Report) { o.a.mail.post(func() { o.report(r) }) }}
	names := announce.Interfaces(s.LANs)
	maps.DeleteFunc(o.links, func(name string, _ l2.State) bool { return !slices.Contains(names, name) })
	if o.speaker != nil {
		return o.speaker.Reconfigure(c)
	}
	speaker, err := o.open(context.Background(), c)
	if err != nil {
		o.startLater()
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	o.speaker, o.began, o.stop, o.ran, o.clean = speaker, time.Now(), stop, true, false
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

// Names of problems with the speaker.
const (
	ownProblem     = "l2 address"
	releaseProblem = "l2 release"
	refreshProblem = "l2 refresh"
	gateProblem    = "l2 gate"
)

// failed gives all VIPs up after the speaker has ended by itself, and starts another one later.
func (o *l2Output) failed(speaker l2Speaker, err error) {
	if o.speaker != speaker {
		return
	}
	if time.Since(o.began) >= o.pause.Hi {
		o.pause.Reset()
	}
	o.a.log.Error("layer 2 ended; starting it again", "err", err)
	o.end()
	o.absent = errors.New("layer 2 ended")
	if err != nil {
		o.absent = fmt.Errorf("%w: %w", o.absent, err)
	}
	o.a.problems.set(announce.L2.String(), o.absent)
	o.startLater()
	o.checkOffline()
}

// startLater plans the next start of a speaker.
func (o *l2Output) startLater() {
	var timer *time.Timer
	timer = time.AfterFunc(o.pause.Next(), func() {
		o.a.mail.post(func() {
			if o.retry == timer { // newer settings have not started one
				o.a.problems.set(announce.L2.String(), o.configure(&o.a.settings))
			}
		})
	})
	o.retry = timer
}

func (o *l2Output) cancelRetry() {
	if o.retry != nil {
		o.retry.Stop()
		o.retry = nil
	}
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
	o.release = nil
	for _, name := range []string{ownProblem, releaseProblem, refreshProblem, gateProblem} {
		o.a.problems.set(name, nil)
	}
	o.forget()
}

// forget removes the states of all VIPs: this host announces none at layer 2.
func (o *l2Output) forget() {
	for place := range o.a.tables.Announced.All() {
		if place.At != placeOfRoutes {
			o.a.tables.Announced.Delete(place)
		}
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
	o.a.problems.set(gateProblem, err)
}

func (o *l2Output) set(_, now *announce.Announcement, probe bool) {
	switch {
	case o.speaker == nil: // the gate is closed, and the next speaker begins with what is announced then
	case now.Here:
		o.a.problems.set(ownProblem, o.speaker.Own(now.Addr, probe))
	default:
		o.release = append(o.release, now.Addr)
	}
}

// act releases the VIPs that were given up, before other hosts learn it, and keeps the gate open.
func (o *l2Output) act(beat bool) {
	if o.speaker == nil {
		return
	}
	if len(o.release) > 0 {
		release := slices.DeleteFunc(o.release, func(addr netip.Addr) bool { return o.a.carries(addr, announce.L2) })
		o.a.problems.set(releaseProblem, o.speaker.Release(release...))
		o.release = nil
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
	o.a.problems.set(refreshProblem, err)
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
func (o *l2Output) close(bool) {
	o.cancelRetry()
	o.end()
}

// report shows a state of the speaker.
func (o *l2Output) report(r l2.Report) {
	switch {
	case o.speaker == nil:
	case r.Addr.IsValid():
		place := announce.Place{Addr: r.Addr, At: r.At}
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
		if slices.Contains(announce.Interfaces(o.a.settings.LANs), r.Interface) { // else of the former settings
			if o.links[r.Interface] = r.State; !slices.Equal(o.linksDown(), o.down) {
				o.checkOffline()
			}
		}
	default:
		var problem error
		if r.State == l2.GateFailed {
			problem = errors.New(r.Reason)
		}
		o.a.problems.set(gateProblem, problem)
		switch r.State {
		case l2.GateClosed:
			o.forget()
		case l2.GateRestored:
			o.a.stats.Restored++
			o.a.log.Warn("the gate was changed by another program, and is restored", "reason", r.Reason)
		}
	}
}

// checkOffline gives all VIPs up, so that other hosts take them, while this host has no speaker, and those of a LAN while none
// of its interfaces works. It costs O(VIPs).
func (o *l2Output) checkOffline() {
	lans, down, absent := o.a.settings.LANs, o.linksDown(), o.absent
	o.down = down
	var problems []string
	for i, why := range down {
		if why != "" {
			problems = append(problems, strings.Join(lans[i].Pools, ", ")+": "+why)
		}
	}
	var problem error
	if problems != nil {
		problem = errors.New(strings.Join(problems, "; "))
	}
	o.a.problems.set("l2 interfaces of pool", problem)
	if o.a.core == nil {
		return
	}
	o.a.core.decider.SetOffline(func(vip netip.Addr) string {
		if absent != nil {
			return absent.Error()
		}
		if i := slices.IndexFunc(lans, func(l announce.LAN) bool { return l.Has(vip) }); i >= 0 {
			return down[i]
		}
		return ""
	})
}

// linksDown returns for each LAN the states of its interfaces if none of them works, else "".
func (o *l2Output) linksDown() (down []string) {
	for _, l := range o.a.settings.LANs {
		var states []string
		for _, name := range l.Interfaces {
			state, known := o.links[name]
			if !known || state == l2.LinkUp {
				states = []string{""}
				break
			}
			states = append(states, fmt.Sprintf("%s: %s", name, state))
		}
		if states == nil {
			states = []string{"no interface to announce VIPs on"}
		}
		down = append(down, strings.Join(states, ", "))
	}
	return down
}
