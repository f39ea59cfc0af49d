package announcer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/announce/heartbeat"
	"github.com/ironvip/ironvip/announce/remains"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/internal/table"
)

// Options specify an announcer.
type Options struct {
	Socket  string // of the agent's connection
	Version string
	Log     *slog.Logger
	// ShuttingDown reports whether the host goes down, when the announcer is stopped. Then it does
	// not leave routes for a next process. nil: never.
	ShuttingDown func() bool

	inherited Kept                                    // sessions of the earlier process
	store     func(name string, c syscall.Conn) error // of the service manager; nil: there is none
}

// startTime is when the first announcements are out: those at layer 2 are paced, and repeated for 3.5 s.
const startTime = 5 * time.Second

// clockSkew is how far apart the clocks of hosts may be: a move that is older than this process by less was made since it began.
const clockSkew = time.Minute

// Announcer is the state of the process. Only Run's goroutine uses it.
type Announcer struct {
	o       Options
	log     *slog.Logger
	begun   time.Time
	tables  control.Tables
	mail    *mailbox
	outputs map[announce.Mode]output

	packets chan heartbeat.Packet
	done    chan struct{}  // closed when Run ends
	work    sync.WaitGroup // goroutines that read sockets
	conn    *heartbeat.Conn
	outbox  outbox // of conn
	full    fullQueue

	core     *core // nil until the agent has sent settings
	settings announce.Settings
	complete bool                // an agent has sent everything once
	ready    bool                // the outputs know that, or that an agent has been away for too long
	born     map[netip.Addr]bool // VIPs that came later and that this host has not announced

	until     time.Time // when announcements end without an agent; zero: the agent is there
	withdrawn string    // why they have ended; "": they have not
	leaving   time.Time // when the process ends at the latest; zero: it goes on
	down      bool      // the host goes down, too

	stats     control.Stats
	problems  problems
	published time.Time
	changed   int    // announcements, in a step
	change    string // one of them in words
}

// New returns an announcer.
func New(o Options) *Announcer {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	a := &Announcer{
		o: o, log: o.Log, begun: time.Now(), tables: control.NewTables(table.NewClock(time.Now())), mail: newMailbox(), outputs: map[announce.Mode]output{},
		packets: make(chan heartbeat.Packet, 256), done: make(chan struct{}),
		born: map[netip.Addr]bool{}, problems: problems{},
	}
	a.outputs[announce.L2], a.outputs[announce.Routes] = newL2(a, remains.Record(o.Socket)), newRoutes(a)
	a.outputs[announce.BGP] = newBGP(a, o.inherited, filepath.Join(filepath.Dir(o.Socket), "bgp-restart"))
	return a
}

// Run announces until ctx ends. Then it hands its VIPs over to other hosts and returns nil.
func (a *Announcer) Run(ctx context.Context) error {
	listener, err := mirror.Listen(a.o.Socket, "announcer")
	if err != nil {
		return err
	}
	return a.run(ctx, listener)
}

func (a *Announcer) run(ctx context.Context, listener net.Listener) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer a.work.Wait()
	defer close(a.done)
	defer func() {
		if a.conn != nil {
			a.conn.Close()
		}
	}()
	defer stop()
	failed := make(chan error, 1)
	server := &mirror.Server{Publish: a.tables.Publish(), Mirror: control.Mirror(func(s *announce.Settings) { a.configure(s, time.Now()) }, agentEligible{a}), Version: a.o.Version, Log: a.log,
		Synced: a.synced, Gone: func() { a.gone(time.Now()) }, Change: a.mail.post}
	a.work.Go(func() { failed <- server.Serve(serving, listener) })
	notify(daemon.SdNotifyReady)
	a.log.Info("announcer ready", "socket", a.o.Socket)

	timer := time.NewTimer(0)
	defer timer.Stop()
	ended := ctx.Done()
	for {
		var packets []heartbeat.Packet
		select {
		case err := <-failed:
			a.closeOutputs(false)
			return err
		case <-ended:
			ended = nil
			a.leave(time.Now())
		case p := <-a.packets:
			packets = append(packets, p)
		case <-a.mail.some:
			a.mail.run()
		case <-timer.C:
		}
		for more := true; more && len(packets) < cap(a.packets); {
			select {
			case p := <-a.packets:
				packets = append(packets, p)
			default:
				more = false
			}
		}
		next := a.step(time.Now(), packets)
		if !a.leaving.IsZero() && a.hasLeft(time.Now()) {
			a.closeOutputs(a.down)
			a.log.Info("announcer stopped")
			return nil
		}
		timer.Reset(time.Until(next))
	}
}

// step processes what has arrived, and returns when the next step is due.
func (a *Announcer) step(now time.Time, packets []heartbeat.Packet) time.Time {
	a.expire(now)
	a.outbox.resend(now)
	next := now.Add(publishEvery)
	if a.core != nil {
		a.changed = 0
		if at := a.core.step(now, packets); at.Before(next) {
			next = at
		}
		if a.changed > 0 {
			a.log.Info("announcements changed", "vips", a.changed, "one_of_them", a.change)
		}
		if (a.complete || a.withdrawn != "") && !a.ready && !a.core.decider.Listening() {
			a.ready = true
			for _, o := range a.outputs {
				o.complete()
			}
			time.AfterFunc(startTime, debug.FreeOSMemory) // of messages and lists with all VIPs
		}
	}
	if now.Sub(a.published) >= publishEvery {
		a.publish(now)
		notify(daemon.SdNotifyWatchdog)
	}
	if at, ok := a.outbox.next(); ok && at.Before(next) {
		next = at
	}
	for _, at := range []time.Time{a.until, a.leaving} {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return next
}

// newCore returns the core whose results are those of the announcer.
func newCore(a *Announcer, d *announce.Decider) *core {
	return &core{
		decider: d,
		acted: func(beat bool) {
			for _, o := range a.outputs {
				o.act(beat)
			}
		},
		emit: func(to netip.AddrPort, packet []byte) {
			a.problems.set(heartbeatTo+to.String(), a.outbox.send(to, packet, time.Now()))
		},
		changed: func(n announce.Announcement, gone bool) {
			former, _, _ := a.tables.Announcements.Get(n.Addr)
			if gone {
				n.Here = false
				a.tables.Announcements.Delete(n.Addr)
			} else {
				a.tables.Announcements.Set(n)
			}
			if former.Here != n.Here {
				a.changed++
				a.change = n.Addr.String() + ": " + n.Why
			}
			a.carry(former, n)
		},
		paused: func(late time.Duration) {
			a.stats.Pauses++
			a.log.Error("this process has not run; other hosts have taken over", "for", late)
		},
	}
}

// heartbeatTo begins the names of problems with one peer.
const heartbeatTo = "heartbeat to "

// leave starts the end of the process: other hosts take over first.
func (a *Announcer) leave(now time.Time) {
	notify(daemon.SdNotifyStopping)
	a.down = a.o.ShuttingDown != nil && a.o.ShuttingDown()
	a.leaving = now.Add(2 * a.settings.Timing().Handover)
	if a.down {
		a.leaving = a.leaving.Add(a.settings.Timing().Leave)
	}
	if a.down || a.announces(announce.L2) {
		a.drain(true, now)
	}
}

// hasLeft reports whether the process may end.
func (a *Announcer) hasLeft(now time.Time) bool {
	if !now.Before(a.leaving) {
		return true
	}
	if a.announces(announce.L2) {
		return false
	}
	return !a.down || !a.announces(announce.BGP, announce.Routes)
}

func (a *Announcer) closeOutputs(leave bool) {
	for _, o := range a.outputs {
		o.close(leave)
	}
}

// read passes packets of a socket on until it is closed.
func (a *Announcer) read(conn *heartbeat.Conn) {
	for {
		p, err := conn.Read()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // an ICMP error concerns one peer
		}
		select {
		case a.packets <- p:
		case <-a.done:
			return
		}
	}
}

// newEpoch returns a random number other than 0.
func newEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return max(binary.BigEndian.Uint64(b[:]), 1)
}

// notify reports to the service manager, if there is one.
func notify(state string) { _, _ = daemon.SdNotify(false, state) }
