// Package heapsize measures for tests what a data structure keeps on the heap.
package heapsize

import "runtime"

// Of returns the bytes that what build returns keeps on the heap. Nothing else may allocate meanwhile.
func Of(build func() any) int {
	before := inUse()
	kept := build()
	after := inUse()
	runtime.KeepAlive(kept)
	return after - before
}

func inUse() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one leaves what has finalizers
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
