package static

import (
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watch reports when changes to a directory have been followed by a quiet time. It watches the
// directory and its parent, because the directory can be created, removed or be a link that
// changes. Without a watcher (inotify is exhausted) it never fires, and the poll finds the changes.
type watch struct {
	dir, parent string
	debounce    time.Duration
	log         *slog.Logger
	watcher     *fsnotify.Watcher // nil: inotify is not available
	events      <-chan fsnotify.Event
	errors      <-chan error
	watched     identity            // of the watched directory; zero: none
	dirty       map[string]struct{} // the files with events
	whole       bool                // other files may have changed, too
	timer       *time.Timer         // fires after the quiet time
	since       time.Time           // time of the first event that take has not returned; zero: none
}

// maxDebounces bounds the wait for a directory that is never quiet, in multiples of debounce.
const maxDebounces = 10

// eventBuffer is the number of events that are read without a switch between goroutines for each.
// A file written under another name and renamed causes six.
const eventBuffer = 64

func newWatch(dir string, debounce time.Duration, log *slog.Logger) *watch {
	w := &watch{dir: dir, parent: filepath.Dir(dir), debounce: debounce, log: log, dirty: map[string]struct{}{}, timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	watcher, err := fsnotify.NewBufferedWatcher(eventBuffer)
	if err != nil {
		log.Warn("no file watch; changes are found by looking every few seconds", "err", err)
		return w
	}
	w.watcher, w.events, w.errors = watcher, watcher.Events, watcher.Errors
	if err := watcher.Add(w.parent); err != nil {
		log.Warn("the directory above the services is not watched", "dir", w.parent, "err", err)
	}
	return w
}

// follow watches the directory that the path refers to now. One more read finds changes that were
// made before the watch.
func (w *watch) follow() {
	if w.watcher == nil {
		return
	}
	now := stampOf(w.dir).identity
	if now == w.watched {
		return
	}
	if w.watched != (identity{}) {
		_ = w.watcher.Remove(w.dir) // fails if the directory is gone
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
	w.armWhole()
}

// note records an event.
func (w *watch) note(e fsnotify.Event) {
	dir, name := filepath.Split(e.Name)
	switch {
	case e.Name == w.dir:
		if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
			w.watched = identity{} // a later directory with the same inode is another one
		}
		w.whole = true
		w.follow()
	case filepath.Clean(dir) != w.dir:
		return // an event of another entry of the parent
	case ServicesName(name):
		w.dirty[e.Name] = struct{}{}
	case strings.HasPrefix(name, ".."): // a config map changes its ..data link
		w.whole = true
	default:
		return
	}
	w.arm()
}

// arm starts or restarts the quiet time, within the bound of maxDebounces.
func (w *watch) arm() {
	now := time.Now()
	if w.since.IsZero() {
		w.since = now
	}
	w.timer.Reset(min(w.debounce, max(0, w.since.Add(maxDebounces*w.debounce).Sub(now))))
}

// armWhole is arm for a read of the whole directory.
func (w *watch) armWhole() {
	w.whole = true
	w.arm()
}

// take returns the files in the events since the last call, and whether other files may have
// changed, too.
func (w *watch) take() (dirty map[string]struct{}, whole bool) {
	dirty, whole = w.dirty, w.whole
	w.dirty, w.whole, w.since = map[string]struct{}{}, false, time.Time{}
	return dirty, whole
}

func (w *watch) close() {
	w.timer.Stop()
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
}
