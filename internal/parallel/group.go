package parallel

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
)

// PanicError is a panic as an error.
type PanicError struct{ Value any }

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Recovered calls f and returns its error. A panic of f is a *PanicError; its stack is in the log.
func Recovered(f func() error) (err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		passed, is := p.(*PanicError) // of All
		if !is {
			passed = &PanicError{p}
			slog.Error("a fault of this program; please report it", "panic", p, "stack", string(debug.Stack()))
		}
		err = passed
	}()
	return f()
}

// Group is an errgroup.Group that turns a panic of a goroutine into its error, so that the owner of
// the part decides whether to run it again. A panic of any other goroutine ends the process, which
// serves others. Sources and stages therefore start no goroutine but with a Group.
type Group struct{ group *errgroup.Group }

// NewGroup returns a group. Its context ends with the first error, or when Wait returns.
func NewGroup(ctx context.Context) (Group, context.Context) {
	group, ctx := errgroup.WithContext(ctx)
	return Group{group}, ctx
}

// Go calls f in a new goroutine. With a limit, it waits until it may.
func (g Group) Go(f func() error) { g.group.Go(func() error { return Recovered(f) }) }

// Run calls f with ctx in a new goroutine.
func (g Group) Run(ctx context.Context, f func(context.Context)) {
	g.Go(func() error { f(ctx); return nil })
}

// SetLimit bounds how many goroutines there are at a time.
func (g Group) SetLimit(n int) { g.group.SetLimit(n) }

// Wait waits for the end of all goroutines, and returns the first error.
func (g Group) Wait() error { return g.group.Wait() }
