package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/bubble"
)

func openDB(t *testing.T, path string) *store.DB {
	t.Helper()
	db, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// A state file that is missing at a later start is noticed, and at the first start it isn't.
func TestMissingStateFileIsNoticed(t *testing.T) {
	dir := t.TempDir()
	cfg, problems := configs.Parse(filepath.Join(dir, "ironvip.toml"), []byte("[node]\nstate_dir = \""+dir+"\"\n"))
	if cfg == nil {
		t.Fatal(problems)
	}
	start := func(want bool) {
		t.Helper()
		db, err := openState(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if lost, err := isStateLost(cfg, db); err != nil || lost != want {
			t.Errorf("lost: %v, %v, want %v", lost, err, want)
		}
		if err := checkStore(cfg, db); err != nil {
			t.Fatal(err)
		}
		if err := cfg.SaveLastGood(); err != nil {
			t.Fatal(err)
		}
		if !want {
			return
		}
		a := &agent{db: db, stateLost: true}
		if c := a.stateChecks(); len(c) != 1 || c[0].Level != v1.LevelWarn || !strings.Contains(c[0].Message, db.Path()) || !strings.Contains(c[0].Hint, "backup") {
			t.Errorf("%+v", c)
		}
	}
	start(false)
	start(false)
	if err := os.Remove(filepath.Join(dir, store.FileName)); err != nil {
		t.Fatal(err)
	}
	start(true)
	start(false)
}

// Failing writes make the status fail, for as long as they fail.
func TestFailingWritesAreAFailure(t *testing.T) {
	db, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{db: db}
	if c := a.stateChecks(); len(c) != 0 {
		t.Errorf("at first: %+v", c)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := noteStore(db, lastStore{}); err == nil {
		t.Fatal("a write to a closed file succeeds")
	}
	<-db.Failed()
	if c := a.stateChecks(); len(c) != 1 || c[0].Level != v1.LevelFail || !strings.Contains(c[0].Message, "write state") {
		t.Errorf("%+v", c)
	}
	select {
	case <-db.Failed():
		t.Error("the write of a check counts as another failure: watchState would never wait")
	default:
	}
}

// A failed write is reported at once: its cause may be gone before the next check.
func TestFailedWriteIsReportedAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	bubble.Test(t, func(t *testing.T) {
		db := openDB(t, path)
		a := &agent{db: db, events: event.NewLog(10, time.Now), log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.watchState(ctx)
		time.Sleep(stateWatchEvery / 10) // the first check finds nothing
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := noteStore(db, lastStore{}); err == nil {
				t.Fatal("a write to a deleted file succeeds")
			}
			synctest.Wait()
		}
		if events, _ := a.events.Since(0); len(events) != 1 || events[0].Kind != "state_failed" {
			t.Errorf("%+v", events)
		}
	})
}

// A state file that is deleted and put back is reported once each, without any write.
func TestDeletedStateFileIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	bubble.Test(t, func(t *testing.T) {
		db := openDB(t, path)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		a := &agent{db: db, events: event.NewLog(10, time.Now), log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.watchState(ctx)
		time.Sleep(3 * stateWatchEvery)
		if c := a.stateChecks(); len(c) != 1 || c[0].Level != v1.LevelFail || !strings.Contains(c[0].Message, "deleted") || !strings.Contains(c[0].Hint, "move the file back") {
			t.Errorf("%+v", c)
		}
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * stateWatchEvery)
		events, _ := a.events.Since(0)
		if len(events) != 2 || events[0].Kind != "state_failed" || events[1].Kind != "state_recovered" {
			t.Errorf("%+v", events)
		}
	})
}
