package announcer

import (
	"iter"
	"net/netip"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/heartbeat"
)

// agentEligible is the agent's table of eligible VIPs: the decider has them.
type agentEligible struct{ *Announcer }

func (a agentEligible) KeyOf(v *announce.Eligible) netip.Addr { return v.Addr }

func (a agentEligible) All() iter.Seq2[netip.Addr, announce.Eligible] {
	return func(yield func(netip.Addr, announce.Eligible) bool) {
		if a.core == nil {
			return
		}
		for v := range a.core.decider.Eligible() {
			if !yield(v.Addr, v) {
				return
			}
		}
	}
}

func (a agentEligible) SetAll(vips []announce.Eligible) {
	if a.core == nil {
		a.log.Warn("VIPs of the agent ignored: they came before all settings")
		return
	}
	for _, v := range vips {
		if a.complete && !a.core.decider.HasEligible(v.Addr) {
			a.born[v.Addr] = true
		}
		a.core.decider.SetEligible(v)
	}
}

func (a agentEligible) Delete(addr netip.Addr) bool {
	delete(a.born, addr)
	if a.core != nil {
		a.core.decider.DropEligible(addr)
	}
	return true
}

// gone is called when the agent has disconnected.
func (a *Announcer) gone(now time.Time) {
	a.until = now.Add(a.settings.Hold)
	a.log.Warn("the agent is gone", "announcements_stay_for", a.settings.Hold)
}

// synced is called when the agent has sent everything. Until then, what it has sent on an earlier
// connection stays in effect.
func (a *Announcer) synced() {
	if a.core == nil {
		return
	}
	a.until = time.Time{}
	if a.withdrawn != "" {
		a.withdrawn = ""
		a.core.decider.Withdraw("")
		a.log.Info("the agent is back")
	}
	a.complete = true
}

// expire withdraws everything when the agent has been gone for too long.
func (a *Announcer) expire(now time.Time) {
	if a.until.IsZero() || now.Before(a.until) {
		return
	}
	a.until, a.withdrawn = time.Time{}, "the agent has been gone for more than "+a.settings.Hold.String()
	a.log.Error("withdrawing all VIPs: the agent has not come back", "after", a.settings.Hold)
	if a.core != nil {
		a.core.decider.Withdraw(a.withdrawn)
	}
}

// configure applies new settings. A setting that does not work is reported, and tried again with the next settings.
func (a *Announcer) configure(s *announce.Settings, now time.Time) {
	former := a.settings
	a.settings = *s
	if a.core == nil || former.Node != s.Node {
		a.begin(now)
	}
	d := a.core.decider
	d.SetWeight(s.Weight)
	a.core.every = s.Heartbeat
	a.problems.set("heartbeats", a.configureHeartbeats(former.Listen, now))
	for _, mode := range []announce.Mode{announce.L2, announce.BGP, announce.Routes} {
		if o := a.outputs[mode]; o != nil {
			a.problems.set(mode.String(), o.configure(s))
		}
	}
	a.drain(s.Draining || !a.leaving.IsZero(), now)
}

// timing returns the times of the decision. A process that ends alone keeps its routes until then, for the next one.
func (a *Announcer) timing() announce.Timing {
	t := a.settings.Timing()
	if !a.leaving.IsZero() && !a.down && !a.settings.Draining {
		t.Leave += 2 * t.Handover
	}
	return t
}

// drain starts or ends the drain of this host. Routers are not asked to avoid it when only the process ends.
func (a *Announcer) drain(on bool, now time.Time) {
	if a.core == nil {
		return
	}
	a.core.decider.SetTiming(a.timing())
	a.core.decider.SetDraining(on, now)
	if x := a.core.exchange; x != nil {
		x.SetDraining(on, now)
	}
	for _, o := range a.outputs {
		o.drain(a.settings.Draining || a.down)
	}
}

// begin creates the state that depends on the host's name.
func (a *Announcer) begin(now time.Time) {
	a.closeHeartbeats()
	for addr, n := range a.tables.Announcements.All() {
		a.carry(n, announce.Announcement{})
		a.tables.Announcements.Delete(addr)
	}
	d := announce.NewDecider(a.settings.Node, a.settings.Weight, a.settings.Timing())
	d.HostChanged, d.Begun = a.hostChanged, uint32(a.begun.Add(-clockSkew).Unix())
	if a.core != nil {
		for v := range a.core.decider.Eligible() {
			d.SetEligible(v)
		}
		d.Withdraw(a.withdrawn)
	}
	a.core = newCore(a, d)
}

// configureHeartbeats starts, changes or stops the heartbeats.
func (a *Announcer) configureHeartbeats(formerListen string, now time.Time) error {
	s := &a.settings
	if len(s.Keys) == 0 || !s.Uses(announce.L2) {
		a.closeHeartbeats()
		return nil
	}
	if len(s.Peers) > heartbeat.ManyPeers {
		a.log.Warn("many peers: each host sends heartbeats to each other one", "peers", len(s.Peers), "recommended", heartbeat.ManyPeers)
	}
	o := heartbeat.Options{Name: s.Node, Keys: s.Keys, Peers: s.Peers, Interval: s.Heartbeat, Missed: s.Missed, Weight: s.Weight, Config: s.Digest()}
	if a.core.exchange != nil && formerListen == s.Listen {
		a.core.exchange.Configure(o)
		return nil
	}
	a.closeHeartbeats()
	conn, err := heartbeat.Listen(s.Listen)
	if err != nil {
		return err
	}
	a.conn, a.outbox = conn, outbox{write: conn.Write, busy: a.outbox.busy}
	a.work.Go(func() { a.read(conn) })
	a.core.exchange = heartbeat.New(o, newEpoch(), a.core.decider, now)
	a.core.listen(now)
	return nil
}

// closeHeartbeats ends the heartbeats. This host is alone then.
func (a *Announcer) closeHeartbeats() {
	if a.core == nil || a.core.exchange == nil {
		return
	}
	a.conn.Close()
	a.conn = nil
	a.outbox.unsent = nil
	for name := range a.problems {
		if strings.HasPrefix(name, heartbeatTo) {
			delete(a.problems, name)
		}
	}
	a.core.exchange.Close()
	a.core.exchange = nil
}

// hostChanged publishes a changed host at once. Stations that could not be reached while a host was
// gone may have missed announcements, so they are repeated when it returns.
func (a *Announcer) hostChanged(now, former announce.Host) {
	a.published = time.Time{}
	if o, ok := a.outputs[announce.L2].(*l2Output); ok && now.Alive && !former.Alive {
		o.reannounce()
	}
}
