package stores

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
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func openDB(t *testing.T, path string) *store.DB {
	t.Helper()
	db := must.Get(store.Open(path))(t)
	t.Cleanup(func() { db.Close() })
	return db
}

// A state file that is missing at a later start is noticed, and at the first start it isn't.
func TestMissingStateFileIsNoticed(t *testing.T) {
	dir := t.TempDir()
	cfg, problems := configs.Parse(filepath.Join(dir, "ironvip.toml"), []byte("[node]\nstate_dir = \""+dir+"\"\n"))
	must.True(t, cfg != nil, problems)
	start := func(want bool) {
		t.Helper()
		s := must.Get(Start(cfg, Options{Clock: &table.Clock{}, Log: slog.New(slog.DiscardHandler)}))(t)
		defer s.Close()
		expect.Equal(t, s.Lost, want, "lost")
		must.Succeed(t, cfg.SaveLastGood())
		if !want {
			return
		}
		if c := s.StateChecks(); len(c) != 1 || c[0].Level != v1.LevelWarn || !strings.Contains(c[0].Message, s.DB.Path()) || !strings.Contains(c[0].Hint, "backup") {
			t.Errorf("%+v", c)
		}
	}
	start(false)
	start(false)
	must.Succeed(t, os.Remove(filepath.Join(dir, store.FileName)))
	start(true)
	start(false)
}

// Failing writes make the status fail, for as long as they fail.
func TestFailingWritesAreAFailure(t *testing.T) {
	db := must.Get(store.Open(filepath.Join(t.TempDir(), store.FileName)))(t)
	s := &Stores{DB: db}
	expect.Empty(t, s.StateChecks(), "at first")
	must.Succeed(t, db.Close())
	must.True(t, Note(db, Place{}) != nil, "a write to a closed file succeeds")
	<-db.Failed()
	if c := s.StateChecks(); len(c) != 1 || c[0].Level != v1.LevelFail || !strings.Contains(c[0].Message, "write state") {
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
		s := &Stores{DB: db, o: Options{Events: event.NewLog(10, time.Now), Log: slog.New(slog.DiscardHandler)}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.WatchState(ctx)
		time.Sleep(stateWatchEvery / 10) // the first check finds nothing
		must.Succeed(t, os.Rename(path, path+".away"))
		for range 3 {
			must.True(t, Note(db, Place{}) != nil, "a write to a deleted file succeeds")
			synctest.Wait()
		}
		if events, _ := s.o.Events.Since(0); len(events) != 1 || events[0].Kind != "state_failed" {
			t.Errorf("%+v", events)
		}
	})
}

// A state file that is deleted and put back is reported once each, without any write.
func TestDeletedStateFileIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	bubble.Test(t, func(t *testing.T) {
		db := openDB(t, path)
		must.Succeed(t, os.Rename(path, path+".away"))
		s := &Stores{DB: db, o: Options{Events: event.NewLog(10, time.Now), Log: slog.New(slog.DiscardHandler)}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.WatchState(ctx)
		time.Sleep(3 * stateWatchEvery)
		if c := s.StateChecks(); len(c) != 1 || c[0].Level != v1.LevelFail || !strings.Contains(c[0].Message, "deleted") || !strings.Contains(c[0].Hint, "move the file back") {
			t.Errorf("%+v", c)
		}
		must.Succeed(t, os.Rename(path+".away", path))
		time.Sleep(3 * stateWatchEvery)
		events, _ := s.o.Events.Since(0)
		if len(events) != 2 || events[0].Kind != "state_failed" || events[1].Kind != "state_recovered" {
			t.Errorf("%+v", events)
		}
	})
}
