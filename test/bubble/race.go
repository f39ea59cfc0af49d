//go:build race

package bubble

import (
	"runtime"
	"sync"
)

var (
	mu     sync.Mutex
	alone  int // how many bubbles run on the one processor
	before int // how many processors there were
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
