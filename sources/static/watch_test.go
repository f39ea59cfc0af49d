package static

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
)

// run runs the source until the test ends. Without a poll interval, only events trigger reads.
func (b *bench) run(poll time.Duration) {
	b.o.Poll = poll
	scope.Go(b.t, func(ctx context.Context) error { return b.Run(ctx, b.sink) })
}

// becomes waits until the services are in effect and the source is stale or not.
func (b *bench) becomes(want string, stale bool) {
	b.t.Helper()
	late := time.After(time.Minute)
	for {
		b.sink.mu.Lock()
		got, isStale := b.sink.String(), b.sink.stale != ""
		b.sink.mu.Unlock()
		if got == want && isStale == stale {
			return
		}
		select {
		case <-b.sink.called:
		case <-late:
			b.t.Fatalf("in effect %q (stale: %v), want %q (stale: %v)", got, isStale, want, stale)
		}
	}
}

func do(t *testing.T, steps ...error) {
	t.Helper()
	for _, err := range steps {
		must.Succeed(t, err)
	}
}

func TestWatchSeesWhatPeopleAndToolsDo(t *testing.T) {
	b := newBench(t)
	b.run(time.Hour)
	b.write("a.toml", service("web", 80))
	b.becomes("web:80", false)

	// This is an editor that keeps a backup.
	do(t, os.Rename(b.path("a.toml"), b.path("a.toml~")))
	b.write("a.toml", service("web", 81))
	b.becomes("web:81", false)

	// This is a tool that renames a new file over the old one.
	b.write(".a.toml.tmp", service("web", 82))
	do(t, os.Rename(b.path(".a.toml.tmp"), b.path("a.toml")))
	b.becomes("web:82", false)

	b.remove("a.toml")
	b.becomes("", false)

	// This is a config map: every file is a link through ..data, and that link changes.
	for name, port := range map[string]int{"..1": 90, "..2": 91} {
		do(t, os.Mkdir(b.path(name), 0o755))
		b.write(filepath.Join(name, "web.toml"), service("web", port))
	}
	do(t, os.Symlink("..1", b.path("..data")), os.Symlink("..data/web.toml", b.path("web.toml")))
	b.becomes("web:90", false)
	do(t, os.Symlink("..2", b.path("..tmp")), os.Rename(b.path("..tmp"), b.path("..data")))
	b.becomes("web:91", false)
}

func TestWatchFollowsTheDirectory(t *testing.T) {
	b := newBench(t)
	b.write("a.toml", service("web", 80))
	b.run(time.Hour)
	b.becomes("web:80", false)

	// The change must be atomic. If the files disappear first, they are removed.
	do(t, os.Rename(b.dir, b.dir+".away"), os.RemoveAll(b.dir+".away"))
	b.becomes("web:80", true)
	do(t, os.Mkdir(b.dir, 0o755))
	b.write("a.toml", service("web", 81))
	b.becomes("web:81", false)
	b.write("a.toml", service("web", 82)) // the new directory is watched
	b.becomes("web:82", false)

	// The directory becomes a link, and the link changes.
	root := filepath.Dir(b.dir)
	for name, port := range map[string]int{"r1": 83, "r2": 84} {
		do(t, os.Mkdir(filepath.Join(root, name), 0o755))
		do(t, os.WriteFile(filepath.Join(root, name, "a.toml"), []byte(service("web", port)), 0o644))
	}
	do(t, os.Rename(b.dir, filepath.Join(root, "old")), os.Symlink("r1", b.dir))
	b.becomes("web:83", false)
	do(t, os.Symlink("r2", filepath.Join(root, "new")), os.Rename(filepath.Join(root, "new"), b.dir))
	b.becomes("web:84", false)
	b.write("a.toml", service("web", 85))
	b.becomes("web:85", false)
}

func TestDirectoryThatComesLater(t *testing.T) {
	b := newBench(t)
	do(t, os.Remove(b.dir))
	b.run(time.Hour)
	b.becomes("", true)
	do(t, os.Mkdir(b.dir, 0o755))
	b.write("a.toml", service("web", 80))
	b.becomes("web:80", false)
}

// The poll finds changes without events, here of a file behind a link to another directory.
func TestPollFindsTheRest(t *testing.T) {
	b := newBench(t)
	elsewhere := filepath.Join(filepath.Dir(b.dir), "elsewhere")
	do(t, os.WriteFile(elsewhere, []byte(service("web", 80)), 0o644), os.Symlink(elsewhere, b.path("a.toml")))
	b.run(10 * time.Millisecond)
	b.becomes("web:80", false)
	do(t, os.WriteFile(elsewhere, []byte(service("web", 81)), 0o644))
	b.becomes("web:81", false)
	b.remove("a.toml")
	b.becomes("", false)
}

// A directory that is never quiet is read nevertheless.
func TestArmWaitsAtMostMaxDebounces(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := &watch{debounce: 50 * time.Millisecond, timer: time.NewTimer(time.Hour)}
		defer w.timer.Stop()
		start := time.Now()
		for noise := time.NewTicker(time.Millisecond); ; {
			w.arm()
			select {
			case <-w.timer.C:
				noise.Stop()
				expect.Equal(t, time.Since(start), maxDebounces*w.debounce, "settled after")
				return
			case <-noise.C:
				must.AtMost(t, time.Since(start), 2*maxDebounces*w.debounce, "never settled")
			}
		}
	})
}
