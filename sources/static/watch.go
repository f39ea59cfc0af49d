package static

import (
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watch waits for changes of a directory to settle. It watches the directory,
// and the one above it, where the directory itself comes, goes or is a link
// that is turned. Without a watcher (no inotify left) it never fires, and the
// poll has to do.
type watch struct {
	dir, parent string
	debounce    time.Duration
	log         *slog.Logger
	watcher     *fsnotify.Watcher // nil without one
	watched     identity          // the directory that is watched; zero is none
	dirty       map[string]struct{}
	timer       *time.Timer
	since       time.Time // the first event that is not settled; zero is none
}

// patience bounds how long a directory that is never quiet is waited for, in
// debounce times.
const patience = 10

func newWatch(dir string, debounce time.Duration, log *slog.Logger) *watch {
	w := &watch{dir: dir, parent: filepath.Dir(dir), debounce: debounce, log: log, dirty: map[string]struct{}{}, timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file watch; changes are found by looking every few seconds", "err", err)
		return w
	}
	w.watcher = watcher
	if err := watcher.Add(w.parent); err != nil {
		log.Warn("the directory above the services is not watched", "dir", w.parent, "err", err)
	}
	return w
}

// follow watches the directory that is at the path now. Changes that came
// before the watch are found by reading once more.
func (w *watch) follow() {
	if w.watcher == nil {
		return
	}
	now := identityOf(w.dir)
	if now == w.watched {
		return
	}
	if w.watched != (identity{}) {
		_ = w.watcher.Remove(w.dir) // it is gone already where the directory is
	}
	w.watched = identity{}
	if now == (identity{}) {
		return
	}
	if err := w.watcher.Add(w.dir); err != nil {
		w.log.Warn("the services directory is not watched", "dir", w.dir, "err", err)
		return
	}
	w.watched = now
	w.arm()
}

// note takes an event in.
func (w *watch) note(e fsnotify.Event) {
	dir, name := filepath.Split(e.Name)
	switch {
	case e.Name == w.dir:
		if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
			w.watched = identity{} // what follows it under the same inode is another
		}
	case filepath.Clean(dir) != w.dir:
		return // beside the directory
	case ServicesName(name):
		w.dirty[e.Name] = struct{}{}
	case strings.HasPrefix(name, ".."): // a config map turns its ..data link
	default:
		return
	}
	w.arm()
}

// arm starts the waiting for quiet, or starts it again within bounds.
func (w *watch) arm() {
	now := time.Now()
	if w.since.IsZero() {
		w.since = now
	}
	w.timer.Reset(min(w.debounce, max(0, w.since.Add(patience*w.debounce).Sub(now))))
}

// settled fires when the directory has been quiet.
func (w *watch) settled() <-chan time.Time { return w.timer.C }

// take returns the files that events named since the last time.
func (w *watch) take() map[string]struct{} {
	dirty := w.dirty
	w.dirty, w.since = map[string]struct{}{}, time.Time{}
	return dirty
}

func (w *watch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *watch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}

func (w *watch) close() {
	w.timer.Stop()
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
}
