package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
)

// Link connects the agent with the announcer. Create it with its exported fields, and start Run.
type Link struct {
	Path  string // of the socket
	Agent string // see Request.Agent
	// Settings returns the current settings, and a channel that is closed when they change.
	Settings func() (announce.Settings, <-chan struct{})
	// Need says what the connection is needed for. It changes only with Settings. Nil: Announcing.
	Need func() Need
	// Gone is called without a connection if nothing is to be announced and an announcer has run, but
	// does not run any more. Nil: not called.
	Gone func(context.Context)
	// Hangs returns why this process does not do its main work although it runs; nil: it does. There is no
	// connection then, as if the process had ended. Nil: never.
	Hangs    func() error
	Eligible table.Reader[netip.Addr, announce.Eligible]
	Tables   // mirrors, which the link alone writes
	Log      *slog.Logger

	mu    sync.Mutex
	state LinkState
}

// Need is what a connection is needed for.
type Need uint8

const (
	// Undecided: the settings are not complete. The link does not connect.
	Undecided Need = iota
	// Nothing is to be announced. The link connects with an announcer that runs, so that it ends what it
	// still announces.
	Nothing
	// Announcing: without a connection, something is wrong.
	Announcing
)

// LinkState is the state of the connection.
type LinkState struct {
	Connected bool
	Synced    bool   // the mirrors are complete
	Version   string // of the announcer
	Since     time.Time
	Reason    string // why it is not connected
}

// State returns the state of the connection.
func (l *Link) State() LinkState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

func (l *Link) set(change func(*LinkState)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.state)
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = 2 * time.Second
)

// Run keeps the connection until the context ends, and returns its error. The mirrors keep their
// rows while there is no connection: the announcer keeps announcing for a while, too.
func (l *Link) Run(ctx context.Context) error {
	l.set(func(s *LinkState) { s.Since, s.Reason = time.Now(), "not connected yet" })
	wait := backoff.Backoff{Lo: minRetry, Hi: maxRetry}
	for {
		_, changed := l.Settings()
		need := Announcing
		if l.Need != nil {
			need = l.Need()
		}
		var absent *absentError
		if need != Undecided {
			began := time.Now()
			err := l.connect(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			l.lost(err, need)
			if time.Since(began) > maxRetry {
				wait.Reset()
			}
			absent, _ = errors.AsType[*absentError](err)
		}
		if need == Announcing || need == Nothing && absent == nil {
			backoff.Nap(ctx, wait.Next(), nil)
			continue
		}
		if absent != nil && errors.Is(absent, unix.ECONNREFUSED) && l.Gone != nil {
			l.Gone(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// absentError is the error of a connection that did not begin.
type absentError struct{ error }

func (e *absentError) Unwrap() error { return e.error }

// lost notes why there is no connection.
func (l *Link) lost(err error, need Need) {
	l.set(func(s *LinkState) {
		if s.Connected || need == Announcing && s.Reason != err.Error() {
			l.Log.Warn("no connection to the announcer", "socket", l.Path, "err", err)
		}
		if s.Connected {
			s.Since = time.Now()
		}
		s.Connected, s.Synced, s.Reason = false, false, err.Error()
	})
}

func (l *Link) hangs() error {
	if l.Hangs == nil {
		return nil
	}
	return l.Hangs()
}

// connect runs one connection to its end.
func (l *Link) connect(ctx context.Context) error {
	if err := l.hangs(); err != nil {
		return err
	}
	raw, err := new(net.Dialer).DialContext(ctx, "unix", l.Path)
	if err != nil {
		return &absentError{err}
	}
	c := newConn(raw)
	running, ctx := parallel.NewGroup(ctx)
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var got error // why it ended, if the announcer knows
	running.Go(func() error {
		got = l.follow(c)
		return got
	})
	running.Go(func() error { return cmp.Or(l.send(ctx, c), ctx.Err()) })
	err = running.Wait()
	err = cmp.Or(got, err)
	if why := l.hangs(); why != nil {
		err = why
	}
	return fmt.Errorf("connection ended: %w", err)
}

// follow mirrors the announcer's tables until the connection ends.
func (l *Link) follow(c *conn) error {
	announcements, announced := mirror[netip.Addr, announce.Announcement]{table: l.Announcements}, mirror[announce.Place, announce.Announced]{table: l.Announced}
	peers := mirror[announce.PeerKey, announce.Peer]{table: l.Peers}
	for first := true; ; first = false {
		var r Report
		if err := c.receive(&r); err != nil {
			return err
		}
		if first {
			if err := checkProtocol(r.Protocol); err != nil {
				return err
			}
			l.set(func(s *LinkState) { *s = LinkState{Connected: true, Version: r.Version, Since: time.Now()} })
			l.Log.Info("connected to the announcer", "version", r.Version)
			announcements.begin()
			announced.begin()
			peers.begin()
		}
		announcements.receive(r.Announcements)
		announced.receive(r.Announced)
		peers.receive(r.Peers)
		if r.Stats != nil {
			l.Stats.Set(*r.Stats)
		}
		if r.Synced {
			announcements.synced()
			announced.synced()
			peers.synced()
			l.set(func(s *LinkState) { s.Synced = true })
		}
	}
}

// send sends the settings and all eligible VIPs, then changes, until the context or the connection
// ends. The announcer keeps what it has until everything was sent, which waits until the pipeline
// has decided about every VIP. Keepalives are sent meanwhile and later, unless the agent hangs.
func (l *Link) send(ctx context.Context, c *conn) error {
	settings, changed := l.Settings()
	if err := c.send(Request{Protocol: Protocol, Keepalive: keepaliveEvery, Agent: l.Agent, Settings: &settings}); err != nil {
		return err
	}
	tick := time.NewTicker(keepaliveEvery)
	defer tick.Stop()
	feed := l.Eligible.Watch()
	defer feed.Close()
	synced := false
	for {
		var r Request
		complete := table.IsClosed(l.Eligible.Ready())
		batch, more := feed.TryNext()
		for i := range batch {
			if b := &batch[i]; b.Deleted {
				r.Removed = append(r.Removed, b.Value.Addr)
			} else {
				r.Eligible = append(r.Eligible, b.Value)
			}
		}
		busy := len(batch) > 0
		if table.IsClosed(changed) {
			settings, changed = l.Settings()
			r.Settings = &settings
			busy = true
		}
		if !busy && complete && !synced {
			r.Synced, synced = true, true
			busy = true
		}
		if busy {
			if err := c.send(r); err != nil {
				return err
			}
			continue
		}
		var ready <-chan struct{}
		if !complete {
			ready = l.Eligible.Ready()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-changed:
		case <-ready:
		case <-tick.C:
			if err := l.hangs(); err != nil {
				return err
			}
			if err := c.send(Request{}); err != nil {
				return err
			}
		}
	}
}
