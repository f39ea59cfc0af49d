package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// sample creates a state file with several levels, overflow pages, free pages and two buckets. It
// returns the file's content, the present values, and the values before the last write.
func sample(t *testing.T) (content []byte, now, before map[string]thing) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ironvip.db")
	db := mustOpen(t, path)
	b, other := NewBucket[thing](db, "things"), NewBucket[thing](db, "other")
	put := func(n int, name string) {
		if err := b.Batch(func(tx *Tx[thing]) {
			for i := range n {
				tx.Put(fmt.Sprintf("key-%04d", i), thing{name, i})
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	put(300, "first")
	put(150, "second")
	for _, err := range []error{
		other.Put("one", thing{"inline", 1}),
		b.Delete("key-0299"),
		b.Put("large", thing{Name: strings.Repeat("x", 9_000)}),
	} {
		must.Succeed(t, err)
	}
	before, _ = b.All()
	must.Succeed(t, b.Put("last", thing{"last", 1}))
	now, _ = b.All()
	must.Succeed(t, db.Close())
	content = must.Get(os.ReadFile(path))(t)
	return content, now, before
}

func TestDamageIsNeverSilent(t *testing.T) { damageFiles(t, 1, 12, 80) }

// damageFiles changes single bytes of a file: one of each step bytes at the start of each page, and as
// many random ones. A fifth as many pages are copied over other pages, or cleared. Open fails, or a
// read names the lost values, or nothing is lost. There is never a panic, a hang, or wrong data.
func damageFiles(t *testing.T, seed uint64, step, flips int) {
	content, now, before := sample(t)
	path := filepath.Join(t.TempDir(), "ironvip.db")
	refused, named, whole := 0, 0, 0
	try := func(what string, damagedContent []byte) {
		t.Helper()
		must.Succeed(t, os.WriteFile(path, damagedContent, 0o600))
		watchdog := time.AfterFunc(3*time.Minute, func() { panic("hangs: " + what) })
		defer watchdog.Stop()
		db, err := open(path, 0)
		if err != nil {
			expect.Is(t, err, ErrDamaged, "%s: %v is not ErrDamaged", what, err)
			refused++
			return
		}
		defer db.Close()
		b := NewBucket[thing](db, "things")
		all, err := b.All()
		switch {
		case errors.Is(err, ErrDamaged):
			named++
		case err != nil:
			t.Errorf("%s: %v", what, err)
		case maps.Equal(all, now), maps.Equal(all, before): // before: the newest header was hit
			whole++
		default:
			t.Errorf("%s: holds other data (%d values)", what, len(all))
		}
		if whole%8 != 0 {
			return // an fsync each time would take too long
		}
		if err := b.Put("more", thing{Name: strings.Repeat("y", 20_000)}); err != nil && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: Put: %v", what, err)
		}
	}
	flip := func(at int, mask byte) {
		bad := append([]byte(nil), content...)
		bad[at] ^= mask
		try(fmt.Sprintf("byte %d ^ %#x", at, mask), bad)
	}
	random := rand.New(rand.NewPCG(seed, 2))
	pages := len(content) / os.Getpagesize()
	for page := range pages {
		for offset := random.IntN(step); offset < 48; offset += step { // page headers and the first elements
			flip(page*os.Getpagesize()+offset, 1<<random.IntN(8))
		}
	}
	for range flips {
		flip(random.IntN(len(content)), byte(1+random.IntN(255)))
	}
	for range flips / 5 { // pages copied over other pages, or zeroed
		bad := append([]byte(nil), content...)
		to := bad[random.IntN(pages)*os.Getpagesize():][:os.Getpagesize()]
		if random.IntN(4) == 0 {
			clear(to)
		} else {
			copy(to, content[random.IntN(pages)*os.Getpagesize():])
		}
		try("page copied or cleared", bad)
	}
	t.Logf("%d refused, %d named what is lost, %d had lost nothing", refused, named, whole)
	if refused == 0 || named == 0 || whole == 0 {
		t.Error("one of the outcomes never came: the damage is too uniform")
	}
}

// A page that lost some or all of its elements, or that has the content of an earlier write, makes
// Open fail: no value is lost without an error.
func TestLostValuesAreRefused(t *testing.T) {
	content, now, before := sample(t)
	size := os.Getpagesize()
	refused := 0
	try := func(what string, bad []byte) {
		t.Helper()
		db, err := open(writeFile(t, bad), 0)
		if errors.Is(err, ErrDamaged) {
			refused++
			return
		}
		must.Succeed(t, err, what)
		defer db.Close()
		all, err := NewBucket[thing](db, "things").All()
		if errors.Is(err, ErrDamaged) { // the page continues a large value
			return
		}
		if err != nil || !maps.Equal(all, now) && !maps.Equal(all, before) {
			t.Errorf("%s: opens with %d values of %d, %v", what, len(all), len(now), err)
		}
		expect.Len(t, must.Get(NewBucket[thing](db, "other").All())(t), 1, "%s: the other bucket has", what)
	}
	for page := 2 * size; page < len(content); page += size {
		count := content[page+10 : page+12] // of the page's elements
		for n := page / size % 4; n < 16; n += 4 {
			bad := bytes.Clone(content)
			flipped := order.Uint16(count) & ^(1 << n)
			order.PutUint16(bad[page+10:], flipped)
			try(fmt.Sprintf("page %d with %d elements", page/size, flipped), bad)
		}
		bad := bytes.Clone(content)
		order.PutUint16(bad[page+10:], 0)
		try(fmt.Sprintf("page %d without elements", page/size), bad)
	}
	expect.AtLeast(t, refused, 10, "only %d were refused", refused)
}

// A write that the disk acknowledged and lost leaves a file with valid pages of different times.
func TestLostWriteIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironvip.db")
	db := mustOpen(t, path)
	b := NewBucket[thing](db, "things")
	put := func(n int) []byte {
		t.Helper()
		if err := b.Batch(func(tx *Tx[thing]) {
			for i := range 300 {
				tx.Put(fmt.Sprintf("key-%04d", i), thing{"x", n})
			}
		}); err != nil {
			t.Fatal(err)
		}
		content := must.Get(os.ReadFile(path))(t)
		return content
	}
	var versions [][]byte
	for n := range 8 {
		versions = append(versions, put(n))
	}
	size, last := os.Getpagesize(), versions[7]
	for page := 2 * size; page < len(last); page += size {
		for n, old := range versions[:7] {
			if len(old) < page+size {
				continue
			}
			bad := bytes.Clone(last)
			copy(bad[page:page+size], old[page:])
			db, err := open(writeFile(t, bad), 0)
			if err != nil {
				expect.Is(t, err, ErrDamaged)
				continue
			}
			all, err := NewBucket[thing](db, "things").All()
			for key, v := range all {
				if v.N != 7 {
					t.Fatalf("page %d of write %d: %s has the value of write %d", page/size, n, key, v.N)
				}
			}
			if err != nil || len(all) != 300 {
				t.Errorf("page %d of write %d: %d values, %v", page/size, n, len(all), err)
			}
			_ = db.Close()
		}
	}
}

func TestTruncatedFileIsRefused(t *testing.T) {
	content, now, _ := sample(t)
	path := filepath.Join(t.TempDir(), "ironvip.db")
	for size := 1; size < len(content); size += 1 + len(content)/211 {
		must.Succeed(t, os.WriteFile(path, content[:size], 0o600))
		db, err := open(path, 0)
		if err == nil { // the end may be unused so far
			all, err := NewBucket[thing](db, "things").All()
			_ = db.Close()
			if err != nil || !maps.Equal(all, now) {
				t.Errorf("%d of %d bytes open with %d values: %v", size, len(content), len(all), err)
			}
			continue
		}
		wantProblem(t, err, ErrDamaged, path)
	}
}

// A running agent gets this damage when its file is truncated.
func TestFileCutUnderAnOpenDatabase(t *testing.T) {
	content, _, _ := sample(t)
	path := writeFile(t, content)
	db := mustOpen(t, path)
	must.Succeed(t, os.Truncate(path, 4096))
	b := NewBucket[thing](db, "things")
	_, err := b.All()
	expect.Is(t, err, ErrDamaged, "All gives")
	expect.Is(t, b.Put("key-0001", thing{}), ErrUnavailable, "Put gives")
	expect.Is(t, b.Put("key-0001", thing{}), ErrDamaged, "a later Put gives")
}

// Open returns for any content, with an error or a DB.
func FuzzOpen(f *testing.F) {
	path := filepath.Join(f.TempDir(), "ironvip.db")
	db := must.Get(Open(path))(f)
	must.Succeed(f, NewBucket[thing](db, "things").Put("a", thing{Name: "b"}))
	_ = db.Close()
	content := must.Get(os.ReadFile(path))(f)
	f.Add(content)
	f.Add(content[:12_000])
	f.Add([]byte("not a database"))
	f.Add(make([]byte, 16<<10))
	f.Fuzz(func(t *testing.T, content []byte) {
		db, err := open(writeFile(t, content), 0)
		if errors.Is(err, syscall.ENOMEM) { // a fault leaves the file mapped, which the kernel permits some ten thousand times
			return
		}
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
		if err == nil {
			_, _ = NewBucket[thing](db, "things").All()
			_ = db.Close()
		}
	})
}
