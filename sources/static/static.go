// Package static is the source of services in a directory of TOML files.
//
// Its input is the directory (services.d), watched and polled. Its output is the services, and all
// problems with file and line. It reads only changed files and publishes only changed services. A
// file that cannot be parsed keeps its previous services. A refused service keeps its last good
// version, also that of the last run of the agent, which the caller has stored. If the directory
// disappears, all services stay in effect. Removing a file removes its services. The package never
// writes to the directory.
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

// Options are the dependencies of a Source. Path is required.
type Options struct {
	Config
	Name string // the source's name; "": Type
	// Prior returns the services in effect of the last run of the agent; nil: none. It is called at most once, and only
	// if the directory can't be read, or has a file with a problem or a contested name.
	Prior func() []vip.Service
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
	out    sources.Sink // nil while Run is not running
	listed bool         // this run has published its full list
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
	return &Source{o: o, log: o.Log.With("source", o.Name), files: newFiles(o)}
}

// Run implements sources.Source. A missing directory is not an error: the source is stale until the
// directory exists.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	w := newWatch(s.o.Path, s.o.Debounce, s.log)
	defer w.close()

	s.mu.Lock()
	s.out, s.listed, s.stale = out, false, false
	s.update(ctx, readAll, nil) // a failure makes the source stale
	s.mu.Unlock()
	err := s.follow(ctx, w)
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
	if s.o.Optional && errors.Is(err, fs.ErrNotExist) && !s.files.known() && len(s.files.prior()) == 0 {
		err = nil
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
		s.out.Replace(s.files.services(s.files.all()), problems)
		s.listed, s.stale, s.published = true, false, problems
	default:
		if len(c.gone) > 0 {
			s.out.Delete(c.gone...)
		}
		if put := s.files.services(c.put); len(put) > 0 {
			s.out.Put(put...)
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

// after logs the change and updates the source's staleness.
func (s *Source) after(c change, err error) {
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
