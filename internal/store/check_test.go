package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Check returns what Open would return, and doesn't change the file.
func TestCheck(t *testing.T) {
	content, _, _ := sample(t)
	expect.Is(t, Check(filepath.Join(t.TempDir(), "ironvip.db")), fs.ErrNotExist, "no file")
	for _, c := range []struct {
		name    string
		content []byte
		says    string // "": no error
	}{
		{"whole", content, ""},
		{"empty", nil, "it is empty"},
		{"cut off", content[:len(content)/2], "cut off"},
		{"text", []byte(strings.Repeat("[node]\n", 10_000)), "no valid header"},
	} {
		path := writeFile(t, c.content)
		err := Check(path)
		if c.says == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.says != "" {
			wantProblem(t, err, ErrDamaged, path)
			expect.Contains(t, err.Error(), c.says, "%s: %v", c.name, err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != string(c.content) {
			t.Errorf("%s: the file is another now: %d bytes, %v", c.name, len(now), err)
		}
	}
}

// A value that only its reader would find damaged is reported, too.
func TestCheckReadsEveryValue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironvip.db")
	db := mustOpen(t, path)
	must.Succeed(t, NewBucket[thing](db, "things").Put("a", thing{Name: "b"}))
	if err := db.bolt.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("things")).Put([]byte("a"), []byte("no sum")) }); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, db.Close())
	err := Check(path)
	wantProblem(t, err, ErrDamaged, path)
	expect.Contains(t, err.Error(), `1 value can't be trusted, the first is things "a"`, err)
}

// A check neither waits for an agent nor blocks one for longer than the check takes.
func TestCheckBesideAnAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironvip.db")
	db := mustOpen(t, path)
	start := time.Now()
	if err := Check(path); !errors.Is(err, ErrLocked) || time.Since(start) > lockTimeout/2 {
		t.Errorf("%v after %s", err, time.Since(start))
	}
	expect.Succeed(t, NewBucket[thing](db, "things").Put("a", thing{}))
	must.Succeed(t, db.Close())
	expect.Succeed(t, Check(path))
	again := must.Get(open(path, 0))(t)
	_ = again.Close()
}
