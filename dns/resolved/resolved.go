// Package resolved points systemd-resolved at this host's DNS server.
//
// Its input is Settings: the link that carries the VIPs, the addresses of the DNS server and the
// domains to look up there. It sets them on the link as a routing domain, over D-Bus, and sets them
// again when the link or systemd-resolved was replaced. Its output is a State. It owns what
// systemd-resolved stores for that link, and reverts it when the settings are no longer wanted. It
// never changes global settings, other links, or files.
//
// The settings stay when the process ends: while nothing answers at the servers, the names fail. After
// a revert, systemd-resolved would ask other servers, which say that the names don't exist.
//
// Source code organization:
//
//	resolved.go   the settings, and the loop that applies them
//	remains.go    settings that are no longer wanted
//	manager.go    the D-Bus calls, and the reasons of refused ones
//	link.go       the kernel's link
//	reverse.go    the reverse zones of pools
//	problem.go    what an operator has to do
package resolved

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/wake"
)

const (
	soon        = 200 * time.Millisecond // the first retry: systemd-resolved learns of a link later than we do
	rare        = 30 * time.Second       // the longest pause between retries
	slowPoll    = time.Minute            // between checks of settings that are in effect; no signal reports their change
	callTimeout = 10 * time.Second       // to connect, and for the calls of one attempt; polkit may take some of it
)

// MaxDomains is how many domains systemd-resolved accepts for a link. It is the bound of version
// 252; later versions accept 1024.
const MaxDomains = 256

// Settings state which names systemd-resolved looks up at which servers.
type Settings struct {
	Link    string           // the interface's name
	Servers []netip.AddrPort // of this host's DNS server
	Domains []string         // lower case, without a final dot; each also stands for the names below it
	On      bool             // false: systemd-resolved must not have them
}

// NewSettings returns the settings for a zone and the reverse zones of pools, which may be none. Listen is
// where the DNS server listens. Without any address there, they are off.
func NewSettings(link, zone string, listen []netip.AddrPort, pools []netip.Prefix) Settings {
	return Settings{Link: link, Servers: slices.Clone(listen), Domains: append([]string{zone}, ReverseZones(pools)...), On: len(listen) > 0}
}

func (s Settings) same(o Settings) bool {
	return s.On == o.On && s.Link == o.Link && slices.Equal(s.Servers, o.Servers) && slices.Equal(s.Domains, o.Domains)
}

// State is what the last attempt found.
type State struct {
	Settings Settings
	Applied  bool     // systemd-resolved has the settings and uses them
	Problem  *Problem // why not; nil before the first attempt
}

// Options are the dependencies of a Follower.
type Options struct {
	Log *slog.Logger

	connect func(context.Context) (manager, error) // nil: the system bus
	links   links                                  // nil: the kernel's
}

// Follower applies settings to systemd-resolved. Its methods may be called by any goroutine.
type Follower struct {
	log     *slog.Logger
	connect func(context.Context) (manager, error)
	links   links
	changed wake.Signal // the settings changed; holds at most one

	applied Settings // what Run may have set, and has not reverted; zero: nothing

	mu    sync.Mutex
	want  Settings
	state State
}

// New returns a Follower that does nothing until Run.
func New(o Options) *Follower {
	f := &Follower{log: o.Log, connect: o.connect, links: o.links, changed: wake.New()}
	if f.connect == nil {
		f.connect = func(ctx context.Context) (manager, error) { return connect(ctx) }
	}
	if f.links == nil {
		f.links = kernelLinks{}
	}
	return f
}

// Configure changes the settings. If they are off, systemd-resolved loses them, those that this process
// has set, and those that an earlier one has left.
func (f *Follower) Configure(s Settings) {
	f.mu.Lock()
	same := f.want.same(s)
	f.want = s
	f.mu.Unlock()
	if same {
		return
	}
	f.changed.Set()
}

// State returns what the last attempt found.
func (f *Follower) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *Follower) settings() Settings {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.want
}

// Run applies the settings until ctx ends, and returns its error. The settings stay afterwards. A failed
// attempt affects nothing but the state.
func (f *Follower) Run(ctx context.Context) error {
	pause := backoff.Backoff{Lo: soon, Hi: rare}
	for {
		select {
		case <-f.changed: // the settings that follow are the newest
		default:
		}
		if want := f.settings(); !want.On {
			f.report(State{})
			f.remove(ctx, want)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-f.changed:
			}
			continue
		}
		err := f.follow(ctx, &pause)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil { // nothing is wanted any more
			continue
		}
		f.report(State{Settings: f.settings(), Problem: problemOf(err)})
		backoff.Nap(ctx, pause.Next(), f.changed)
	}
}

// follow applies the settings with one connection to the bus, until it breaks, ctx ends, or the
// settings are off. Only in the last case it returns nil.
func (f *Follower) follow(ctx context.Context, pause *backoff.Backoff) error {
	m, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer m.Close()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	links, err := f.links.Watch(watching)
	if err != nil {
		return fmt.Errorf("watch the interfaces: %w", err)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-f.changed:
			pause.Reset()
		case <-m.Changed():
			pause.Reset()
		case <-m.Closed():
			return errBusLost
		case name, open := <-links:
			if !open {
				return errors.New("watch the interfaces: the subscription ended")
			}
			if name != f.applied.Link {
				continue
			}
			pause.Reset()
		}
		want := f.settings()
		if !want.On {
			return nil
		}
		f.applied = want // an attempt that failed may have set some of it
		err := f.apply(ctx, m, want)
		f.report(State{Settings: want, Applied: err == nil, Problem: problemOf(err)})
		if err != nil {
			timer.Reset(pause.Next())
			continue
		}
		pause.Reset()
		timer.Reset(slowPoll)
	}
}

// apply sets what differs. It costs two calls if nothing does.
func (f *Follower) apply(ctx context.Context, m manager, want Settings) error {
	if len(want.Domains) > MaxDomains {
		return errTooManyDomains(len(want.Domains))
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	index, err := f.links.Find(want.Link)
	if err != nil {
		return err
	}
	has, err := m.Link(ctx, index)
	if err != nil {
		return err
	}
	if !has.fits(want) {
		if err := m.Set(ctx, index, want); err != nil {
			return err
		}
		f.log.Info("systemd-resolved uses this host's DNS server", "link", want.Link, "servers", want.Servers, "domains", len(want.Domains))
		if has, err = m.Link(ctx, index); err != nil {
			return err
		}
	}
	if !has.inUse {
		return errLinkUnused(want.Link)
	}
	return nil
}

// report stores the state, and logs another problem than before.
func (f *Follower) report(s State) {
	f.mu.Lock()
	was := f.state
	f.state = s
	f.mu.Unlock()
	if s.Problem != nil && (was.Problem == nil || *was.Problem != *s.Problem) {
		f.log.Warn("systemd-resolved does not use this host's DNS server", "err", s.Problem.Message, "fix", s.Problem.Hint)
	}
}
