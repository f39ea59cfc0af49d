package proxy

import (
	"runtime/debug"
	"time"
)

// contain, deferred by the goroutine of a client, ends a panic there: a fault that one client meets
// must not end the clients of other services. The client counts as refused; end ends what is left
// of its connection (nil: nothing). A panic of end is contained, too.
func (f *frontend) contain(s *service, end func()) {
	p := recover()
	if p == nil {
		return
	}
	f.target.refuse(s, panicked)
	if f.target.errorLog.pass(f.target.now(), time.Second) {
		f.log().Error("a fault of this program ended the connection of a client; please report it", "panic", p, "stack", string(debug.Stack()))
	}
	if end != nil {
		defer f.contain(s, nil)
		end()
	}
}

// Panicked returns how many clients were refused because of a panic since the start, and whether
// any was in the last minute.
func (t *Target) Panicked() (clients uint64, now bool) {
	return t.refused.count(panicked), t.refused.since(t.now()-int64(recent), panicked)
}
