package bubble_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

// With two processors and the race detector, this nearly always ends the process if the bubble may
// use both.
func TestTimersOfManyGoroutines(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	bubble.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 200 {
					var timers [100]*time.Timer
					for i := range timers {
						timers[i] = time.NewTimer(1)
					}
					time.Sleep(2 * time.Nanosecond)
					for _, timer := range timers {
						select {
						case <-timer.C:
						default:
							t.Error("a timer has not expired in its time")
						}
					}
				}
			})
		}
		wg.Wait()
	})
	expect.Equal(t, runtime.GOMAXPROCS(0), before, "processors afterwards")
}

// All tests use this package and not synctest.Test.
func TestUsedEverywhere(t *testing.T) {
	call := []byte("synctest" + ".Test(")
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if files++; bytes.Contains(text, call) {
			t.Errorf("%s calls testing/synctest itself: use bubble.Test", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	expect.AtLeast(t, files, 100, "only %d test files were found", files)
}
