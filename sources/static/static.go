// Package static is the source of services written in a directory of TOML
// files.
//
// In goes the directory (services.d), watched and polled; out go its services,
// and every problem with file and line. It reads only files that changed, and
// tells only services that changed. It fails towards traffic: a file that can't
// be made sense of keeps the services it last had, a service that is refused
// keeps its last good version, and a directory that vanishes keeps everything;
// a file that is removed takes its services along. What was last good is
// remembered across restarts. The package never writes into the directory.
package static

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Defaults of Options.
const (
	// DefaultDebounce is long enough for an editor's or a deployment's several
	// steps to be taken as one, and too short for a person to notice.
	DefaultDebounce = 100 * time.Millisecond
	// DefaultPoll finds what no event tells: changes on network file systems,
	// and behind links to files elsewhere.
	DefaultPoll = 10 * time.Second
)

// LastGood is what one file last said that was good.
type LastGood struct {
	Services []LastGoodService `json:"services"`
}

// LastGoodService is a service and where it was.
type LastGoodService struct {
	Origin string       `json:"origin"`
	Aside  bool         `json:"aside,omitempty"` // another file has the name
	Spec   spec.Service `json:"spec"`
}

// Store keeps what was last good, by the file's path. A *store.Bucket is one.
// Several static sources may share it.
type Store interface {
	// All returns every value. With an error that is store.ErrDamaged the map
	// holds those that could be read.
	All() (map[string]LastGood, error)
	// Batch makes all the writes that fill asks for durable, or none.
	Batch(fill func(tx *store.Tx[LastGood])) error
}

// Options are what a Source depends on. Path and Store are needed.
type Options struct {
	Config
	Name  string // the source's name; "" is Type
	Store Store
	// Pools returns what services are checked against; nil is nothing. It is
	// asked anew whenever a file is read.
	Pools    func() []spec.Pool
	Debounce time.Duration // how long the directory must be quiet; 0 is DefaultDebounce
	Poll     time.Duration // 0 is DefaultPoll
	Events   *event.Log
	Log      *slog.Logger // nil is the default one
}

// Source implements sources.Source.
type Source struct {
	o   Options
	log *slog.Logger

	mu     sync.Mutex // held while the directory is read and told of
	files  *files
	out    sources.Sink // nil while Run is not running
	loaded bool         // the Store has been read
	listed bool         // this run has told its full list
	told   []vip.Problem
	stale  bool
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

// Run implements sources.Source. A directory that is missing is no failure: the
// source is stale until it is there.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	w := newWatch(s.o.Path, s.o.Debounce, s.log)
	defer w.close()

	s.mu.Lock()
	s.out, s.listed, s.stale = out, false, false
	s.load()
	change, err := s.read(ctx, readAll)
	// Every run starts with the full list; one of which nothing at all is known
	// is none, and leaves the source unsynced.
	if err == nil || s.files.known() {
		s.replace()
	}
	s.after(change, err)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.out = nil
		s.mu.Unlock()
	}()

	poll := time.NewTicker(s.o.Poll)
	defer poll.Stop()
	for {
		w.follow()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.settled():
			s.refresh(ctx, w.take(), readChanged)
		case <-poll.C:
			if s.refresh(ctx, nil, readPolled) {
				w.arm() // what seems to be gone may be between two steps of an editor
			}
		case e, open := <-w.events():
			if !open {
				return errors.New("the file watch ended")
			}
			w.note(e)
		case err, open := <-w.errors():
			if open {
				s.log.Warn("file watch", "err", err)
				w.arm()
			}
		}
	}
}

// Reload reads every file again, whether it looks changed or not, and against
// the present pools, and returns everything that is wrong once the outcome has
// been told: all of it in one step. It also confirms a directory that was
// replaced by an empty one. The context can only stop it before anything has
// changed.
func (s *Source) Reload(ctx context.Context) []vip.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load()
	change, err := s.read(ctx, readAll|confirmed)
	s.tell(change, err)
	s.after(change, err)
	problems := s.files.problems()
	if err != nil {
		problems = append(problems, vip.Problem{Code: vip.CodeInvalid, Place: s.o.Path, Message: err.Error(),
			Hint: "its services stay as they are; make the directory, or correct the source's path"})
	}
	return problems
}

// read finds out what changed.
func (s *Source) read(ctx context.Context, how mode) (change, error) {
	c, err := s.files.read(ctx, how)
	if s.o.Optional && errors.Is(err, fs.ErrNotExist) && !s.files.known() {
		err = nil
	}
	return c, err
}

// refresh reads what changed and tells of it. It reports whether files seem to
// be gone that a poll alone does not take away.
func (s *Source) refresh(ctx context.Context, dirty map[string]struct{}, how mode) (missing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files.distrust(dirty)
	change, err := s.read(ctx, how)
	s.tell(change, err)
	s.after(change, err)
	return change.missing
}

// tell passes on what changed. The caller holds mu.
func (s *Source) tell(c change, err error) {
	if s.out == nil {
		return
	}
	if err == nil && !s.listed || s.listed && !slices.Equal(s.told, s.files.problems()) {
		s.replace()
		return
	}
	if len(c.gone) > 0 {
		s.out.Delete(c.gone...)
	}
	if len(c.put) > 0 {
		s.out.Put(c.put...)
	}
}

func (s *Source) replace() {
	s.report(s.files.problems())
	s.out.Replace(s.files.services(), s.told)
	s.listed, s.stale = true, false
}

// maxEvents is how many refusals of one change become events.
const maxEvents = 20

// report adds an event for each new problem, and one when the last problem is solved.
func (s *Source) report(problems []vip.Problem) {
	added := 0
	for _, p := range problems {
		if !slices.Contains(s.told, p) && added < maxEvents {
			added++
			s.o.Events.Add(event.Event{Kind: "services_refused", Service: p.Service, Object: p.Place, Message: p.Error()})
		}
	}
	if len(problems) == 0 && len(s.told) > 0 {
		s.o.Events.Add(event.Event{Kind: "services_accepted", Object: s.o.Path, Message: "all files are good again"})
	}
	s.told = problems
}

// after logs, remembers what is now good, and tells how fresh it all is.
func (s *Source) after(c change, err error) {
	if err == nil {
		if saveErr := s.save(c.files); saveErr != nil {
			s.log.Error("the last good services could not be remembered", "err", saveErr)
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
	all, err := s.o.Store.All()
	if err != nil {
		s.log.Error("some of the last good services could not be read", "err", err)
	}
	s.files.restore(all)
}

// save makes what the files say durable. Files whose saving fails are tried
// again with the next change.
func (s *Source) save(changed []string) error {
	for _, path := range changed {
		s.files.unsaved[path] = struct{}{}
	}
	if len(s.files.unsaved) == 0 {
		return nil
	}
	err := s.o.Store.Batch(func(tx *store.Tx[LastGood]) {
		for path := range s.files.unsaved {
			if good, there := s.files.remembered(path); there {
				tx.Put(path, good)
			} else {
				tx.Delete(path)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("save %d files of %s: %w", len(s.files.unsaved), s.o.Path, err)
	}
	clear(s.files.unsaved)
	return nil
}
