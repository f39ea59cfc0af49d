package static

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// With the real supervisor, one edit changes one row. A reload returns after the table has changed.
// The status follows the directory.
func TestUnderTheSupervisor(t *testing.T) {
	b := newBench(t)
	clock := &table.Clock{}
	services := table.New(clock, vip.KeyOfService, nil)
	statuses := table.New(clock, sources.KeyOfStatus, sources.SameStatus)
	supervisor := sources.NewSupervisor(sources.Options{Resolver: pipeline.NewResolve(pipeline.ResolveOptions{Services: services}), Services: services, Statuses: statuses, Log: b.o.Log})
	supervisor.Add("static", Type, b.Source)
	b.write("a.toml", service("web", 80)+service("db", 5432))

	scope.Go(t, supervisor.Run)
	<-services.Ready()
	must.Equal(t, services.Len(), 2, "services")

	feed := services.Watch()
	defer feed.Close()
	feed.TryNext()
	// The change must be atomic, because the watch may read a file that is half written.
	b.write(".a.toml.tmp", service("web", 0)+service("db", 5433))
	do(t, os.Rename(b.path(".a.toml.tmp"), b.path("a.toml")))
	expect.Len(t, b.Reload(t.Context()), 1, "problems")
	batch, _ := feed.TryNext()
	if len(batch) != 1 || batch[0].Value.Key.Name != "db" || batch[0].Value.Ports[0].Port != 5433 {
		t.Errorf("changes %v", batch)
	}

	until := func(what string, good func(sources.Status) bool) {
		t.Helper()
		late := time.After(time.Minute)
		for {
			changed := statuses.Changed()
			status, _, _ := statuses.Get("static")
			if good(status) {
				return
			}
			select {
			case <-changed:
			case <-late:
				t.Fatal(what, fmt.Sprintf("%+v", status))
			}
		}
	}
	until("one problem", func(s sources.Status) bool { return s.Synced && s.Services == 2 && len(s.Problems) == 1 })
	do(t, os.Rename(b.dir, b.dir+".away")) // atomically, because files that disappear first would be removed
	until("stale", func(s sources.Status) bool { return s.Stale != "" })
	expect.Equal(t, services.Len(), 2, "services without the directory")
	must.Succeed(t, supervisor.Resync("static"))
	do(t, os.Mkdir(b.dir, 0o755))
	b.write("a.toml", service("web", 80))
	until("fresh", func(s sources.Status) bool { return s.Stale == "" && s.Services == 1 && len(s.Problems) == 0 })
}
