//go:build race

package bubble

import (
	"runtime"
	"sync"
)

var (
	mu     sync.Mutex
	alone  int // the number of bubbles that run on the one processor
	before int // the number of processors before
)

func oneProcessor() (release func()) {
	mu.Lock()
	defer mu.Unlock()
	if alone++; alone == 1 {
		before = runtime.GOMAXPROCS(1)
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if alone--; alone == 0 {
			runtime.GOMAXPROCS(before)
		}
	}
}
