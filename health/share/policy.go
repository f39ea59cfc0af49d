package share

import (
	"strconv"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Probers is the setting how many hosts probe a target: "auto", "all", or a number from 1 to
// MaxProbers.
type Probers string

// The values of Probers that are no numbers. With ProbersAuto, each host probes in fleets of up to
// SmallFleet hosts, and otherwise three.
const (
	ProbersAuto Probers = "auto"
	ProbersAll  Probers = "all"
)

// SmallFleet is up to how many hosts each one probes for itself with ProbersAuto.
const SmallFleet = 16

// MaxProbers is the largest number of probers.
const MaxProbers = 100

const autoProbers = 3

// FromTree implements strict.Value: the setting is a text, or a number.
func (p *Probers) FromTree(raw any) error {
	const hint = `use "auto", "all", or a number from 1 to 100`
	text, isText := raw.(string)
	if n, err := strict.Int(raw); err == nil {
		text = strconv.Itoa(n)
	} else if !isText {
		return vip.Problem{Code: vip.CodeInvalid, Message: "must be a text or a number", Hint: hint}
	}
	*p = Probers(text)
	if n, err := strconv.Atoi(text); *p != ProbersAuto && *p != ProbersAll && (err != nil || n < 1 || n > MaxProbers) {
		return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(text) + " is not a number of probers", Hint: hint}
	}
	return nil
}

// count returns how many hosts probe a target in a fleet that shares results.
func (p Probers) count() int {
	if n, err := strconv.Atoi(string(p)); err == nil {
		return n
	}
	return autoProbers
}

// all reports whether each host of a fleet of that size probes for itself.
func (p Probers) all(hosts int) bool {
	switch p {
	case ProbersAll:
		return true
	case ProbersAuto, "":
		return hosts <= SmallFleet
	}
	return hosts <= p.count()
}

const (
	// firstHosts is how long a host that is new to a small fleet waits for others before it probes: the
	// first hosts of a large fleet must not take it for a small one. A host that knows no hosts then
	// goes on to wait, and probes at the lowest rate.
	firstHosts = 10 * time.Second
	// shrinkPatience is how long a fleet must be small before each host probes for itself. After a
	// fault of Consul, hosts are absent for a while.
	shrinkPatience = time.Minute
	// alonePatience is how long the store must be away before a host probes for itself. An election of
	// Consul's leader takes less.
	alonePatience = 10 * time.Second
	// settleTime is how long a host goes on to probe after it no longer has to probe everything.
	// Meanwhile the probers write what has changed since their last verdicts.
	settleTime = 15 * time.Second
	// orphanPatience is how long a target may have no verdict, beyond the time for one. Its probers
	// don't have it then, so this host probes it.
	orphanPatience = 10 * time.Second

	// hostsPerRate and maxSlow bound the rate of a host that is cut off: a fleet without the store sends
	// a target about as many probes as SmallFleet hosts, until the interval is maxSlow times longer.
	hostsPerRate = SmallFleet
	maxSlow      = 15
)

// mode is in which way this host probes.
type mode struct {
	hosts   map[string]struct{} // the present ones
	began   time.Time
	fresh   bool // this host was not among them before this run
	decided bool
	waiting bool      // for the fleet's hosts
	lost    bool      // it has waited for firstHosts
	all     bool      // each host probes for itself
	alone   bool      // this host is cut off from the store
	stale   bool      // the rows can't be written now
	small   time.Time // since when the fleet is small, while results are shared; zero: it isn't
	settles time.Time // until when probes go on; zero: they don't
	next    time.Time // when setMode has something to do without a change; zero: never
}

// size returns the number of hosts.
func (s *Share) size() int {
	n := len(s.mode.hosts)
	if _, known := s.mode.hosts[s.Node]; !known {
		n++
	}
	return n
}

// slow returns how many times longer the intervals of a host are that probes in place of others.
func (s *Share) slow() int { return min(max(s.size()/hostsPerRate, 2), maxSlow) }

// setMode finds out in which way this host probes. A change costs O(targets).
func (s *Share) setMode(now time.Time) {
	m, before := &s.mode, s.mode
	m.next = time.Time{}
	after := func(since time.Time, d time.Duration) bool { // d has passed since then
		at := since.Add(d)
		if now.Before(at) {
			m.next = earliest(m.next, at)
			return false
		}
		return true
	}
	m.waiting, m.lost = false, false
	if small := s.Probers.all(s.size()); small && s.Probers != ProbersAll && (m.fresh || len(m.hosts) == 0) {
		late := after(m.began, firstHosts)
		m.waiting = len(m.hosts) == 0 || !late
		m.lost = m.waiting && late
	}
	switch small := s.Probers.all(s.size()); {
	case m.waiting:
	case !small:
		m.small, m.all, m.decided = time.Time{}, false, true
	case !m.decided:
		m.all, m.decided = true, true
	case !m.all:
		if m.small.IsZero() {
			m.small = now
		}
		m.all = after(m.small, shrinkPatience)
	}
	why, _, since := s.Tree.StaleSince()
	m.stale = why != ""
	m.alone = m.stale && after(since, alonePatience)
	if before.all && !m.all || before.alone && !m.alone {
		m.settles = now.Add(settleTime)
	}
	settled := !m.settles.IsZero() && after(m.settles, 0)
	if settled {
		m.settles = time.Time{}
	}
	if m.decided != before.decided || m.all != before.all || m.alone != before.alone || m.waiting != before.waiting || m.lost != before.lost || m.stale != before.stale || settled {
		for _, it := range s.items {
			s.look(it)
		}
	}
}

// shares reports whether results are shared now.
func (m *mode) shares() bool { return m.decided && !m.all && !m.waiting }

// isAssigned reports whether this host knows which targets it probes: because the fleet has divided them
// and lists this host, because it probes everything, or because it can't know better.
func (s *Share) isAssigned() bool {
	m := &s.mode
	_, listed := m.hosts[s.Node]
	return m.lost || m.decided && !m.waiting && (m.all || m.alone || listed)
}

// pace returns how many times longer than usual the interval between two probes of an item is; 0:
// this host doesn't probe it.
func (s *Share) pace(it *item, now time.Time) int {
	m := &s.mode
	switch {
	case !it.wanted:
		return 0
	case it.local, it.target.Private(), !m.waiting && m.decided && m.all, m.shares() && s.members.rank(it.group, s.Node) >= 0:
		return 1
	case m.lost:
		return maxSlow
	case m.shares() && (m.alone || s.isOrphan(it, now)):
		return s.slow()
	case now.Before(m.settles):
		return it.probing
	}
	return 0
}

// isOrphan reports whether a target has had no verdict for so long that this host has to probe it.
func (s *Share) isOrphan(it *item, now time.Time) bool {
	return !it.row.known() && !now.Before(it.orphanAt())
}

// orphanAt returns when a target without a verdict becomes an orphan.
func (it *item) orphanAt() time.Time {
	since := it.since
	if it.lostAt.After(since) {
		since = it.lostAt
	}
	return since.Add(it.target.Window() + orphanPatience)
}

// setProbing starts or stops the probes of an item.
func (s *Share) setProbing(it *item, now time.Time) {
	pace := s.pace(it, now)
	was := it.probing
	if pace == was {
		return
	}
	it.probing = pace
	if pace == 0 {
		s.probes--
		s.Engine.Stop(it.target)
		s.setOwn(it, probe.Result{}, false)
		return
	}
	s.Engine.Start(it.target, probe.Use{Namespace: it.namespace, Local: it.local, Slow: pace, Begins: it.beginning()})
	if was == 0 {
		s.probes++
		own, _, _ := s.Own.Get(it.target)
		s.setOwn(it, own, true)
	}
}

// beginning returns where this host's probes of a target begin: at the verdict, or else at what this
// host knew before; the zero Result if nothing is known.
func (it *item) beginning() probe.Result {
	r := it.result
	if it.row.known() {
		r = it.row.result(it.target)
		r.Reason = it.row.Reason
	}
	if r.Health != vip.Healthy && r.Health != vip.Unhealthy {
		return probe.Result{}
	}
	return r
}

// resultOf returns the result of an item that counts on this host: its own, else the verdict, else
// the last one.
func (s *Share) resultOf(it *item) probe.Result {
	shares := s.mode.shares()
	if it.probing > 0 && (it.own.Health != vip.Unknown || !shares || !it.row.known()) {
		r := it.own
		if shares && !s.mode.alone && it.row.known() && it.row.Health == r.Health {
			r.Origin = probe.Agreed
		}
		return r
	}
	if it.row.known() {
		return it.row.result(it.target)
	}
	return it.result
}
