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
