package keep

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

type row struct{ name, value string }

// memory is a Store that counts, and fails on request.
type memory struct {
	sync.Mutex
	stored map[string]string
	err    error
	writes int
	sizes  []int // of each write that succeeded
}

func (m *memory) All() (map[string]string, error) { return m.stored, nil }

func (m *memory) Write(put map[string]string, remove []string) error {
	m.Lock()
	defer m.Unlock()
	if m.writes++; m.err != nil {
		return m.err
	}
	m.sizes = append(m.sizes, len(put)+len(remove))
	maps.Copy(m.stored, put)
	for _, name := range remove {
		delete(m.stored, name)
	}
	return nil
}

// state returns what is stored, and the size of each write that succeeded.
func (m *memory) state() (stored map[string]string, sizes []int) {
	m.Lock()
	defer m.Unlock()
	return maps.Clone(m.stored), slices.Clone(m.sizes)
}

func (m *memory) fail(err error) (writes int) {
	m.Lock()
	defer m.Unlock()
	m.err, writes, m.writes = err, m.writes, 0
	return writes
}

// A write that failed is tried again, with longer and longer pauses, and at the end; meanwhile nothing waits for it. It
// has everything that has changed. Names of an earlier run go when the table is complete.
func TestKeeper(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := &memory{stored: map[string]string{"old": "1", "stays": "1"}, err: errors.New("no space left on device")}
		rows := table.New(&table.Clock{}, func(r *row) string { return r.name }, nil)
		complete, done := make(chan struct{}), make(chan struct{})
		k := Keeper[string, row, string]{Table: rows, Store: m, What: "rows", Log: slog.New(slog.DiscardHandler), Pause: time.Second,
			Name: func(name string) string { return name }, Row: func(r *row) string { return r.value }, Kept: func(r *row) bool { return r.value != "" },
			Names: map[string]bool{"old": true, "stays": true}, Complete: []<-chan struct{}{complete}, Mark: "all"}
		ctx, end := context.WithCancel(t.Context())
		go func() { defer close(done); k.Run(ctx) }()
		for range 1000 {
			rows.Set(row{"stays", "2"})
			rows.Set(row{"other's", ""})
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		expect.Between(t, m.fail(nil), 360, 800, "attempts in an hour, one in 5 to 10 seconds")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		expect.Equal(t, m.fail(nil), 1, "writes of all changes")
		expect.True(t, maps.Equal(m.stored, map[string]string{"old": "1", "stays": "2"}), "stored %v", m.stored)
		close(complete)
		synctest.Wait()
		expect.True(t, maps.Equal(m.stored, map[string]string{"stays": "2", "all": ""}), "stored %v", m.stored)
		rows.Delete("other's")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		expect.Equal(t, m.fail(errors.New("away")), 1, "writes, of nothing that isn't kept")
		rows.Delete("stays")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		m.fail(nil)
		end()
		<-done
		expect.True(t, maps.Equal(m.stored, map[string]string{"all": ""}), "stored at the end: %v", m.stored)
	})
}

// A value that the store has already is not written again.
func TestStoredValuesAreNotWritten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := &memory{stored: map[string]string{"a": "1", "b": "1"}}
		rows := table.New(&table.Clock{}, func(r *row) string { return r.name }, nil)
		before := maps.Clone(m.stored)
		k := Keeper[string, row, string]{Table: rows, Store: m, What: "rows", Log: slog.New(slog.DiscardHandler),
			Name: func(name string) string { return name }, Row: func(r *row) string { return r.value },
			Stored: func(name, value string) bool { is := before[name] == value; delete(before, name); return is }}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); k.Run(ctx) }()
		rows.Set(row{"a", "1"})
		synctest.Wait()
		expect.Equal(t, m.fail(nil), 0, "writes of what is stored")
		for _, value := range []string{"2", "1"} {
			rows.Set(row{"a", value})
			synctest.Wait()
			expect.Equal(t, m.stored["a"], value)
		}
		end()
		<-done
	})
}

// The first change is written at once, and those of the pause after a write together.
func TestPauseIsBetweenWrites(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := &memory{stored: map[string]string{}}
		rows := table.New(&table.Clock{}, func(r *row) string { return r.name }, nil)
		k := Keeper[string, row, string]{Table: rows, Store: m, What: "rows", Log: slog.New(slog.DiscardHandler), Pause: time.Second,
			Name: func(name string) string { return name }, Row: func(r *row) string { return r.value }}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go k.Run(ctx)
		synctest.Wait()
		rows.Set(row{"a", "1"})
		synctest.Wait()
		expect.Equal(t, m.fail(nil), 1, "writes at once")
		rows.Set(row{"b", "1"})
		synctest.Wait()
		rows.Set(row{"c", "1"})
		time.Sleep(time.Second / 2)
		synctest.Wait()
		expect.Equal(t, m.fail(nil), 0, "writes within the pause")
		time.Sleep(time.Second)
		synctest.Wait()
		expect.Equal(t, m.fail(nil), 1, "writes after the pause")
		expect.Equal(t, len(m.stored), 3, "values")
	})
}

// The rows of a large table are written in parts. A failure keeps the parts that were written, and the mark comes after all
// of them.
func TestALargeTableIsWrittenInParts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := &memory{stored: map[string]string{}}
		rows := table.New(&table.Clock{}, func(r *row) string { return r.name }, nil)
		for i := range 3*mostRows + 5 {
			rows.Set(row{strconv.Itoa(i), "1"})
		}
		complete := make(chan struct{})
		close(complete)
		k := Keeper[string, row, string]{Table: rows, Store: failing{m, 2}, What: "rows", Pause: time.Second, Log: slog.New(slog.DiscardHandler),
			Name: func(name string) string { return name }, Row: func(r *row) string { return r.value },
			Names: map[string]bool{}, Complete: []<-chan struct{}{complete}, Mark: "-all"}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); k.Run(ctx) }()
		synctest.Wait()
		stored, _ := m.state()
		expect.Equal(t, len(stored), 2*mostRows, "rows after a failure")
		_, marked := stored["-all"]
		expect.False(t, marked, "the mark came before the rows")
		time.Sleep(time.Second)
		synctest.Wait()
		stored, sizes := m.state()
		expect.SameList(t, sizes, []int{mostRows, mostRows, mostRows, 6}, "rows of each write")
		expect.Equal(t, len(stored), 3*mostRows+6, "rows and the mark")
		end()
		<-done
	})
}

// failing is a memory that fails once, after a number of writes.
type failing struct {
	*memory
	after int
}

func (f failing) Write(put map[string]string, remove []string) error {
	f.Lock()
	now := len(f.sizes) == f.after && f.writes == f.after
	f.Unlock()
	if now {
		f.fail(errors.New("no space left on device"))
		defer f.fail(nil)
	}
	return f.memory.Write(put, remove)
}
