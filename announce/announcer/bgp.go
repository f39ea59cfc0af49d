package announcer

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/session"
)

// bgpOutput announces VIPs to routers, by a host route for each, by aggregates, or both, and ends sessions when
// BFD reports a failed path.
type bgpOutput struct {
	routeSet[announce.PrefixRoute]
	inAggregate map[netip.Prefix]int // how many announced VIPs an aggregate has

	a      *Announcer
	record string // the file of graceful restart
	kept   Kept   // sessions of the earlier process, until the speakers begin

	speaker *bgp.Speaker // nil: off
	bfd     *bfd.Speaker
	stop    context.CancelFunc
	running sync.WaitGroup

	families [message.Families]bool // of the VIPs
	draining bool
}

func newBGP(a *Announcer, kept Kept, record string) *bgpOutput {
	return &bgpOutput{routeSet: newRouteSet(announce.NewPrefixRoutes()), inAggregate: map[netip.Prefix]int{}, a: a, kept: kept, record: record}
}

func (o *bgpOutput) configure(s *announce.Settings) error {
	if !s.Uses(announce.BGP) {
		o.end(true)
		return nil
	}
	if len(s.BGP) == 0 { // the configuration has some
		return errors.New("the agent can't read the settings of the routers: sessions stay as they are")
	}
	c := bgp.Config{RouterID: s.RouterID, Peers: s.BGP, Record: o.record, Log: o.a.log, Report: func(bgp.Session) { o.a.mail.post(o.sessionsChanged) }}
	if o.speaker != nil {
		o.speaker.Reconfigure(c)
	} else {
		o.begin(c)
	}
	o.families = [message.Families]bool{}
	for _, r := range s.Ranges(announce.BGP) {
		o.families[message.FamilyOf(r)] = true
	}
	o.sessionsChanged()
	return nil
}

// begin starts the speakers.
func (o *bgpOutput) begin(c bgp.Config) {
	ctx, stop := context.WithCancel(context.Background())
	c.Inherited = o.kept.BGP
	o.speaker, o.stop = bgp.New(ctx, c, o.routeSet), stop
	o.bfd = bfd.New(bfd.Config{Log: o.a.log, Inherited: o.kept.BFD, Until: o.kept.At.Add(nextProcess), Report: func(s bfd.Status) { o.a.mail.post(func() { o.pathChanged(s) }) }})
	o.running.Go(func() {
		if err := o.bfd.Run(ctx); err != nil && ctx.Err() == nil {
			o.a.mail.post(func() { o.a.problems.set("bfd", err) })
		}
	})
	o.kept = Kept{}
	o.speaker.Drain(o.draining)
}

// end ends the speakers, and the sessions that wait for them. Leave makes routers remove the routes at once.
func (o *bgpOutput) end(leave bool) {
	if leave && len(o.kept.BGP) > 0 {
		o.begin(bgp.Config{Record: o.record, Log: o.a.log}) // has no peer with such a session
	}
	if o.speaker == nil {
		return
	}
	if leave {
		o.speaker.Shutdown()
	}
	o.stop()
	o.speaker.Wait()
	o.running.Wait()
	o.speaker, o.bfd = nil, nil
	o.a.published = time.Time{}
}

// sessionsChanged publishes the sessions, and lets BFD watch the path to each router with a known address.
func (o *bgpOutput) sessionsChanged() {
	o.a.published = time.Time{}
	if o.speaker == nil {
		return
	}
	watched := map[bfd.Key]bool{}
	for _, s := range o.speaker.Sessions() {
		p, key := s.Config, bfd.Key{Peer: s.Address, VRF: s.Config.VRF}
		if !s.Address.IsValid() || p.BFDInterval == 0 {
			continue
		}
		watched[key] = true
		c := bfd.Settings{Key: key, Source: p.Source, Interval: p.BFDInterval, Multiplier: uint8(p.BFDMultiplier), Multihop: p.Multihop > 1}
		if p.TTLSecurity && c.Multihop {
			c.LeastTTL = uint8(256 - p.Multihop)
		}
		o.bfd.Set(c)
	}
	for _, s := range o.bfd.Sessions() {
		if !watched[s.Key] {
			o.bfd.Remove(s.Key)
		}
	}
}

// pathChanged publishes the state of a BFD session. A failed path ends the BGP session.
func (o *bgpOutput) pathChanged(path bfd.Status) {
	o.a.published = time.Time{}
	if o.speaker == nil || !path.Failed {
		return
	}
	for _, s := range o.speaker.Sessions() {
		if s.Address == path.Peer && s.Config.VRF == path.VRF {
			o.speaker.PathDown(s.Peer, strings.TrimSpace("BFD: "+path.Reason))
		}
	}
}

// rows returns the states of the sessions.
func (o *bgpOutput) rows() (all []announce.Peer) {
	if o.speaker == nil {
		return nil
	}
	for _, s := range o.speaker.Sessions() {
		row := announce.Peer{PeerKey: announce.PeerKey{Kind: announce.BGPSession, Name: s.Peer}, State: s.State.String(), Up: s.State == session.Established,
			Since: s.Since, Reason: s.Reason, Hint: s.Hint, Draining: s.Draining, Owned: s.Prefixes[message.IPv4] + s.Prefixes[message.IPv6],
			Negotiated: s.Negotiated(), Lacks: s.Lacks, Sending: s.Sending}
		row.Routes, row.IBGP = s.Config.Routes(), s.Config.IBGP()
		if s.Address.IsValid() {
			row.Address = s.Address.String()
		}
		if s.State == session.OpenSent || s.State == session.OpenConfirm { // the connection that failed was another one
			row.Reason, row.Hint = "", ""
			if s.Reason != "" {
				row.Reason = "the attempt before: " + s.Reason
			}
		}
		for f, lacks := range s.Lacks {
			if lacks != "" && o.families[f] {
				row.Problems = append(row.Problems, lacks)
			}
		}
		row.Reason = cmp.Or(row.Reason, strings.Join(row.Problems, "; "))
		all = append(all, row)
	}
	for _, r := range o.speaker.Ranges() {
		row := announce.Peer{PeerKey: announce.PeerKey{Kind: announce.BGPRange, Name: r.Name}, State: "listening", Up: r.Reason == "", Since: r.Since, Reason: r.Reason}
		if !row.Up {
			row.State = session.Idle.String()
		}
		all = append(all, row)
	}
	for _, s := range o.bfd.Sessions() {
		key := announce.PeerKey{Kind: announce.BFDSession, Name: s.Name()}
		all = append(all, announce.Peer{PeerKey: key, State: s.State.String(), Up: s.State == bfd.Up, Since: s.Since, Reason: s.Reason, Lost: s.Downs})
	}
	return all
}

// set makes the routes of a VIP those of now. New routes come first.
func (o *bgpOutput) set(former, now *announce.Announcement, _ bool) {
	var own, aggregate, formerOwn, formerAggregate announce.PrefixRoute
	if now.Here {
		own, aggregate = now.Route.For(now.Addr)
	}
	if former.Here {
		formerOwn, formerAggregate = former.Route.For(former.Addr)
	}
	if aggregate.Prefix.IsValid() {
		o.inAggregate[aggregate.Prefix]++
		o.Set(aggregate)
	}
	if own.Prefix.IsValid() {
		o.Set(own)
	} else if formerOwn.Prefix.IsValid() {
		o.Delete(formerOwn.Prefix)
	}
	if p := formerAggregate.Prefix; p.IsValid() {
		if o.inAggregate[p]--; o.inAggregate[p] == 0 {
			delete(o.inAggregate, p)
			o.Delete(p)
		}
	}
}

func (o *bgpOutput) act(bool) {}

func (o *bgpOutput) drain(on bool) {
	if o.draining == on {
		return
	}
	o.draining = on
	if o.speaker != nil {
		o.speaker.Drain(on)
	}
}

func (o *bgpOutput) close(leave bool) {
	if !leave && o.a.o.store != nil {
		if o.speaker != nil { // else there were no settings: the next process may have them
			o.kept = Kept{At: time.Now(), BFD: o.bfd.HandOver(nextProcess), BGP: o.speaker.HandOver()}
		}
		if len(o.kept.BGP)+len(o.kept.BFD) > 0 {
			Keep(o.kept, o.a.o.Socket, o.a.o.store, o.a.log)
		}
	}
	o.end(leave)
}
