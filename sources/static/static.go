// Package static is the source of services in a directory of TOML files.
//
// Its input is the directory (services.d), watched and polled. Its output is the services, and all
// problems with file and line. It reads only changed files and publishes only changed services. A
// file that cannot be parsed keeps its previous services. A refused service keeps its last good
// version. If the directory disappears, all services stay in effect. Removing a file removes its
// services. The last good services are stored for the next start: at once when a file becomes invalid,
// and otherwise within a second of the change. No change waits for that. The package never writes to the
// directory.
package static

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/keep"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Defaults of Options.
const (
	// DefaultDebounce combines the steps of an editor or a deployment into one change. Its delay is
	// too short for a person to notice.
	DefaultDebounce = 100 * time.Millisecond
	// DefaultPoll is the interval of reads that find changes without an event: changes on network
	// file systems, and changes behind links to files elsewhere.
	DefaultPoll = 10 * time.Second
)

// saveDelay is how long a change may wait to be stored while all files are good. A killed agent loses at
// most the changes of this time from the Store. The next run reads them from the files, unless those
// became invalid while no agent ran.
const saveDelay = time.Second

// LastGood is the last good definition of a service in one file.
type LastGood struct {
	Origin   string       `json:"origin"`
	Shadowed bool         `json:"shadowed,omitempty"` // another file's definition of this name is in effect
	Spec     spec.Service `json:"spec"`
}

// Store keeps the last good definitions, by file and service. *store.Bucket implements it. Several
// static sources may share it.
type Store interface {
	// Sealed returns every value, not decoded.
	Sealed() ([]store.Sealed[LastGood], error)
	keep.Writer[LastGood]
}

// Options are the dependencies of a Source. Path and Store are required.
type Options struct {
	Config
	Name  string // the source's name; "": Type
	Store Store
	// Pools returns the pools to check services against; nil: none. It is called each time the
	// directory, or some of its files, are read.
	Pools    func() []spec.Pool
	Debounce time.Duration // how long the directory must be quiet; 0: DefaultDebounce
	Poll     time.Duration // interval of polls; 0: DefaultPoll
	Events   *event.Log
	Log      *slog.Logger // nil: slog.Default
}

// Source implements sources.Source.
type Source struct {
	o   Options
	log *slog.Logger

	mu     sync.Mutex // held while the directory is read and published
	files  *files
	out    sources.Sink    // nil while Run is not running
	loaded bool            // the Store has been read
	stored map[string]bool // the names in the Store; the keeper's, once Run is called
	read   chan struct{}   // closed once the directory has been read
	hurry  chan struct{}   // has an element when the files alone no longer have the services in effect
	listed bool            // this run has published its full list
	stale  bool
	// published are the problems in the last full list.
	published []vip.Problem
}

// New returns a source that reads nothing before Run or Reload.
func New(o Options) *Source {
	if o.Name == "" {
		o.Name = Type
	}
	if o.Pools == nil {
		o.Pools = func() []spec.Pool { return nil }
	}
	if o.Debounce <= 0 {
		o.Debounce = DefaultDebounce
	}
	if o.Poll <= 0 {
		o.Poll = DefaultPoll
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Source{o: o, log: o.Log.With("source", o.Name), files: newFiles(o), read: make(chan struct{}), hurry: make(chan struct{}, 1)}
}

// Run implements sources.Source. A missing directory is not an error: the source is stale until the
// directory exists.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	w := newWatch(s.o.Path, s.o.Debounce, s.log)
	defer w.close()

	s.mu.Lock()
	s.out, s.listed, s.stale = out, false, false
	s.load()
	s.update(ctx, readAll, nil) // a failure makes the source stale
	s.mu.Unlock()
	parts, ctx := parallel.NewGroup(ctx)
	parts.Run(ctx, s.keep)
	parts.Go(func() error { return s.follow(ctx, w) })
	err := parts.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = nil
	return err
}

// follow reads and publishes changes until the context ends.
func (s *Source) follow(ctx context.Context, w *watch) error {
	poll := time.NewTicker(s.o.Poll)
	defer poll.Stop()
	w.follow()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.timer.C:
			w.follow()
			dirty, whole := w.take()
			s.refresh(ctx, dirty, whole)
		case <-poll.C:
			w.follow()
			if s.poll(ctx) {
				w.armWhole() // a file that seems to be gone may be between two steps of an editor
			}
		case e, open := <-w.events:
			if !open {
				return errors.New("the file watch ended")
			}
			w.note(e)
		case err, open := <-w.errors:
			if open {
				s.log.Warn("file watch", "err", err)
				w.armWhole()
			}
		}
	}
}

// Reload reads every file again, even if it looks unchanged, and checks it against the current
// pools. It publishes the result in one step and then returns all problems. It also confirms a
// directory that was replaced by an empty one. The context can stop it only before anything has
// changed.
func (s *Source) Reload(ctx context.Context) []vip.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load()
	_, err := s.update(ctx, readAll|confirmed, nil)
	problems := s.files.problems()
	if err != nil {
		problems = append(problems, vip.Problem{Code: vip.CodeInvalid, Place: s.o.Path, Message: err.Error(),
			Hint: "its services stay as they are; make the directory, or correct the source's path"})
	}
	return problems
}

// refresh reads and publishes changes after events: only the dirty files, unless others may have
// changed, too.
func (s *Source) refresh(ctx context.Context, dirty map[string]struct{}, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files.distrust(dirty)
	if whole {
		dirty = nil
	}
	s.update(ctx, readChanged, dirty)
}

// poll reads and publishes changes without events. It reports whether files seem to be gone, which
// a poll does not remove.
func (s *Source) poll(ctx context.Context) (missing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change, _ := s.update(ctx, readPolled, nil)
	return change.missing
}

// update reads the directory, or only some of its files, and publishes the changes. A
// missing optional directory is not an error. The caller holds mu.
func (s *Source) update(ctx context.Context, how mode, only map[string]struct{}) (change, error) {
	c, err := s.files.read(ctx, how, only)
	if s.o.Optional && errors.Is(err, fs.ErrNotExist) && !s.files.known() {
		err = nil
	}
	if err == nil && !table.IsClosed(s.read) {
		close(s.read)
	}
	s.publish(c, err)
	s.after(c, err)
	return c, err
}

// publish publishes a change. Every run starts with the full list. If the directory can't be read
// and no file is known, there is no list, and the source stays unsynced. The caller holds mu.
func (s *Source) publish(c change, err error) {
	problems := s.files.problems()
	switch {
	case s.out == nil:
	case !s.listed && (err == nil || s.files.known()), s.listed && !slices.Equal(s.published, problems):
		s.report(problems)
		s.out.Replace(s.files.services(), problems)
		s.listed, s.stale, s.published = true, false, problems
	default:
		if len(c.gone) > 0 {
			s.out.Delete(c.gone...)
		}
		if len(c.put) > 0 {
			s.out.Put(c.put...)
		}
	}
}

// maxEvents is the maximum number of refusals in one change that become events.
const maxEvents = 20

// report adds an event for each new problem, and one event when the last problem is fixed.
func (s *Source) report(problems []vip.Problem) {
	added := 0
	for _, p := range problems {
		if !slices.Contains(s.published, p) && added < maxEvents {
			added++
			s.o.Events.Add(event.Event{Kind: "services_refused", Service: p.Service, Object: p.Place, Message: p.Error()})
		}
	}
	if len(problems) == 0 && len(s.published) > 0 {
		s.o.Events.Add(event.Event{Kind: "services_accepted", Object: s.o.Path, Message: "all files are good again"})
	}
}

// after logs the change and updates the source's staleness. It has a change stored at once if the next run
// could not read it from the files.
func (s *Source) after(c change, err error) {
	if err != nil || len(s.files.problems()) > 0 {
		select {
		case s.hurry <- struct{}{}:
		default:
		}
	}
	if len(c.put)+len(c.gone) > 0 {
		s.log.Info("services changed", "set", len(c.put), "removed", len(c.gone), "problems", len(s.files.problems()))
	}
	switch {
	case s.out == nil || errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case err != nil:
		s.stale = true
		s.out.Stale(err)
	case s.stale:
		s.stale = false
		s.out.Fresh()
	}
}

// load reads the Store once.
func (s *Source) load() {
	if s.loaded {
		return
	}
	s.loaded = true
	all, err := s.o.Store.Sealed()
	if err != nil {
		s.log.Error("some of the last good services could not be read", "err", err)
	}
	s.stored = s.files.restore(all)
}

// keep stores the last good services until the context ends. Once the directory has been read, it removes
// what no file defines.
func (s *Source) keep(ctx context.Context) {
	k := keep.Keeper[definition, lastGood, LastGood]{
		Table: s.files.kept, Store: s.o.Store, Log: s.log, What: "the last good services", Pause: saveDelay, Hurry: s.hurry,
		Name: definition.text, Row: (*lastGood).stored, Names: s.stored, Complete: []<-chan struct{}{s.read},
	}
	k.Run(ctx)
}
