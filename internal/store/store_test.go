package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

type thing struct {
	Name string
	N    int
}

func mustOpen(t *testing.T, path string) *DB {
	t.Helper()
	db := must.Get(Open(path))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// wantProblem checks that err is one of want, names the path and has a hint.
func wantProblem(t *testing.T, err, want error, path string) {
	t.Helper()
	must.Is(t, err, want)
	var p vip.Problem
	must.True(t, errors.As(err, &p), "%v carries no problem", err)
	if p.Code != vip.CodeStore || p.Hint == "" || !strings.Contains(err.Error(), path) {
		t.Errorf("problem %+v: want a hint and the path %s", p, path)
	}
}

func TestValuesSurviveReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "ironvip.db")
	db := mustOpen(t, path)
	b := NewBucket[thing](db, "things")
	must.Empty(t, must.Get(b.All())(t), "a bucket never written has")
	for i := range 3 {
		must.Succeed(t, b.Put(fmt.Sprint(i), thing{"x", i}))
	}
	must.Succeed(t, b.Batch(func(tx *Tx[thing]) { tx.Delete("0"); tx.Delete("absent"); tx.Put("1", thing{"y", 11}) }))
	must.Succeed(t, db.Close())
	again := NewBucket[thing](mustOpen(t, path), "things")
	all, err := again.All()
	if err != nil || len(all) != 2 || all["1"] != (thing{"y", 11}) || all["2"] != (thing{"x", 2}) {
		t.Errorf("after reopening: %v, %v", all, err)
	}
	if v, ok, err := again.Get("2"); !ok || err != nil || v.N != 2 {
		t.Errorf("Get gives %v, %v, %v", v, ok, err)
	}
	if _, ok, err := again.Get("0"); ok || err != nil {
		t.Errorf("a deleted value is there: %v, %v", ok, err)
	}
}

func TestWritePutsAndRemoves(t *testing.T) {
	b := NewBucket[thing](mustOpen(t, filepath.Join(t.TempDir(), "ironvip.db")), "things")
	must.Succeed(t, b.Put("old", thing{}))
	must.Succeed(t, b.Write(map[string]thing{"a": {}, "b": {}}, []string{"old", "never was"}))
	all, err := b.All()
	if got := slices.Sorted(maps.Keys(all)); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v, %v", got, err)
	}
	expect.True(t, b.Write(map[string]thing{"c": {}}, []string{""}) != nil, "an empty key is removed without an error")
	if all, _ := b.All(); len(all) != 2 {
		t.Errorf("half of a write was written: %v", all)
	}
}

func TestBatchWithABadKeyWritesNothing(t *testing.T) {
	b := NewBucket[thing](mustOpen(t, filepath.Join(t.TempDir(), "ironvip.db")), "things")
	for _, key := range []string{"", strings.Repeat("k", maxKey+1)} {
		err := b.Batch(func(tx *Tx[thing]) { tx.Put("good", thing{}); tx.Put(key, thing{}) })
		if err == nil || errors.Is(err, ErrUnavailable) {
			t.Errorf("key of %d bytes: %v, want an error that no retry fixes", len(key), err)
		}
	}
	all, _ := b.All()
	expect.Empty(t, all, "half of a batch was written")
}

func TestConcurrentWritersShareTransactions(t *testing.T) {
	db := mustOpen(t, filepath.Join(t.TempDir(), "ironvip.db"))
	b := NewBucket[thing](db, "things")
	const writers = 64
	before := db.bolt.Stats()
	db.writer.Lock() // let all of them queue first
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			expect.Succeed(t, b.Put(fmt.Sprint(i), thing{N: i}))
		})
	}
	for queued := 0; queued < writers; time.Sleep(time.Millisecond) {
		db.queue.Lock()
		queued = len(db.queue.waiting)
		db.queue.Unlock()
	}
	db.writer.Unlock()
	wg.Wait()
	expect.Equal(t, len(must.Get(b.All())(t)), writers, "values")
	after := db.bolt.Stats()
	n := after.TxStats.GetWrite() - before.TxStats.GetWrite()
	expect.AtMost(t, n, 10, "%d page writes for %d values that came together", n, writers)
}

func TestWriteAfterCloseIsAnError(t *testing.T) {
	db := mustOpen(t, filepath.Join(t.TempDir(), "ironvip.db"))
	_ = db.Close()
	b := NewBucket[thing](db, "things")
	expect.Is(t, b.Put("a", thing{}), ErrUnavailable, "Put gives")
	_, err := b.All()
	expect.True(t, err != nil, "All gives no error")
}

func TestSecondOpenerReportsTheFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironvip.db")
	first := mustOpen(t, path)
	_, err := open(path, 10*time.Millisecond)
	wantProblem(t, err, ErrLocked, path)
	expect.Contains(t, err.Error(), "in use by another process", "message %q", err)
	// The failed attempt must not have released the other's lock.
	if _, err := open(path, 10*time.Millisecond); !errors.Is(err, ErrLocked) {
		t.Errorf("third opener: %v", err)
	}
	must.Succeed(t, first.Close())
	mustOpen(t, path)
}

func TestOpenWaitsForAClosingProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironvip.db")
	first := mustOpen(t, path)
	opened := make(chan error)
	go func() {
		db, err := Open(path)
		if err == nil {
			err = db.Close()
		}
		opened <- err
	}()
	_ = first.Close()
	expect.Succeed(t, <-opened)
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must.Succeed(t, os.WriteFile(file, []byte("x"), 0o600))
	for name, path := range map[string]string{
		"a directory":         dir,
		"below a plain file":  filepath.Join(file, "ironvip.db"),
		"a device":            "/dev/null",
		"not a database":      file,
		"a file that is text": writeFile(t, []byte(strings.Repeat("[node]\n", 10_000))),
	} {
		db, err := open(path, 0)
		if err == nil {
			_ = db.Close()
			t.Errorf("%s opens", name)
			continue
		}
		var p vip.Problem
		if !errors.As(err, &p) || p.Place != path {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An empty file is not a new one, in which services would silently get other addresses. The file
// remains unchanged.
func TestEmptyFileIsRefused(t *testing.T) {
	path := writeFile(t, nil)
	_, err := open(path, 0)
	wantProblem(t, err, ErrDamaged, path)
	expect.Contains(t, err.Error(), "it is empty", err)
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Errorf("%v, %v", info, err)
	}
}

// If several processes create the file at once, one gets it and the others get an error. None
// leaves another file behind.
func TestTheFileIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ironvip.db")
	var opened atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			switch db, err := open(path, 0); {
			case err == nil:
				opened.Add(1)
				t.Cleanup(func() { _ = db.Close() })
			case !errors.Is(err, ErrLocked):
				t.Error(err)
			}
		})
	}
	all.Wait()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || opened.Load() != 1 {
		t.Errorf("%d have it open; files %v, %v", opened.Load(), files, err)
	}
}

func writeFile(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ironvip.db")
	must.Succeed(t, os.WriteFile(path, content, 0o600))
	return path
}

// When the file or its directory was deleted or replaced, writes would be lost with the process.
// They are refused, also without an earlier write, until the file is back.
func TestDisplacedFile(t *testing.T) {
	for name, displace := range map[string]func(dir string) error{
		"deleted":                   func(dir string) error { return os.Remove(filepath.Join(dir, "ironvip.db")) },
		"its directory deleted":     os.RemoveAll,
		"replaced by a copy":        func(dir string) error { return replaceByCopy(filepath.Join(dir, "ironvip.db")) },
		"its directory is replaced": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
		"a file at its directory":   func(dir string) error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			path := filepath.Join(dir, "ironvip.db")
			db := mustOpen(t, path)
			b := NewBucket[thing](db, "things")
			must.Succeed(t, b.Put("a", thing{Name: "before"}))
			must.Succeed(t, db.Failing())
			must.Succeed(t, displace(dir))
			wantProblem(t, db.Failing(), ErrDisplaced, path)
			err := b.Put("a", thing{Name: "after"})
			wantProblem(t, err, ErrDisplaced, path)
			expect.Is(t, err, ErrUnavailable)
			if v, ok, err := b.Get("a"); err != nil || !ok || v.Name != "before" {
				t.Errorf("a refused write: %v, %v, %v", v, ok, err)
			}
		})
	}
	dir := filepath.Join(t.TempDir(), "state")
	db := mustOpen(t, filepath.Join(dir, "ironvip.db"))
	must.Succeed(t, os.Rename(dir, dir+".away"))
	b := NewBucket[thing](db, "things")
	expect.Is(t, b.Put("a", thing{}), ErrDisplaced)
	must.Succeed(t, os.Rename(dir+".away", dir))
	expect.Succeed(t, errors.Join(db.Failing(), b.Put("a", thing{})), "when the directory is back")
}

func replaceByCopy(path string) error {
	content, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path+".copy", content, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".copy", path)
	}
	return err
}

// A batch is written in the order of its keys, as the pages are: otherwise a large one costs the square of its size. Of two
// writes to one key, the later one counts.
func TestABatchIsWrittenInTheOrderOfKeys(t *testing.T) {
	db := must.Get(Open(filepath.Join(t.TempDir(), FileName)))(t)
	defer db.Close()
	b := NewBucket[int](db, "x")
	var written *Tx[int]
	must.Succeed(t, b.Batch(func(tx *Tx[int]) {
		written = tx
		for i := range 1000 {
			tx.Put(strconv.Itoa(i*7919%1000), i)
		}
		tx.Put("5", 1)
		tx.Put("5", 2)
	}))
	expect.True(t, slices.IsSortedFunc(written.writes, func(a, b write) int { return bytes.Compare(a.key, b.key) }), "the writes are not in order")
	got, _, err := b.Get("5")
	must.Succeed(t, err)
	expect.Equal(t, got, 2, "the value of a key that was written three times")
}
