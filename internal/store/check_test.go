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
)

// Check returns what Open would return, and doesn't change the file.
func TestCheck(t *testing.T) {
	content, _, _ := sample(t)
	if err := Check(filepath.Join(t.TempDir(), "ironvip.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
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
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.name, err, c.says)
			}
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
	if err := NewBucket[thing](db, "things").Put("a", thing{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	if err := db.bolt.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("things")).Put([]byte("a"), []byte("no sum")) }); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	err := Check(path)
	wantProblem(t, err, ErrDamaged, path)
	if !strings.Contains(err.Error(), `1 value can't be trusted, the first is things "a"`) {
		t.Error(err)
	}
}

// A check neither waits for an agent nor blocks one for longer than the check takes.
func TestCheckBesideAnAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironvip.db")
	db := mustOpen(t, path)
	start := time.Now()
	if err := Check(path); !errors.Is(err, ErrLocked) || time.Since(start) > lockTimeout/2 {
		t.Errorf("%v after %s", err, time.Since(start))
	}
	if err := NewBucket[thing](db, "things").Put("a", thing{}); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Check(path); err != nil {
		t.Error(err)
	}
	again, err := open(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}
