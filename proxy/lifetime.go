package proxy

import (
	"context"
	"sync"
)

// lifetime is a context that is made when it is first needed: most frontends have no client that waits.
// The zero value has not ended.
type lifetime struct {
	mu     sync.Mutex
	ctx    context.Context // nil: nobody has needed it
	cancel context.CancelFunc
}

// endedContext is the context of a lifetime that nobody has needed before its end.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// context returns the context, which end cancels.
func (l *lifetime) context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		l.ctx, l.cancel = context.WithCancel(context.Background())
	}
	return l.ctx
}

// end cancels the context. A further call does nothing.
func (l *lifetime) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ctx == nil:
		l.ctx = endedContext
	case l.cancel != nil:
		l.cancel()
	}
}
