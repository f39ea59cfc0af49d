package parallel

import (
	"context"
	"errors"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// A panic of a goroutine is an error of its group, and ends the others.
func TestPanicOfAGroup(t *testing.T) {
	running, ctx := NewGroup(t.Context())
	running.Run(ctx, func(ctx context.Context) { <-ctx.Done() })
	running.Go(func() error { panic("a mistake") })
	caught, is := errors.AsType[*PanicError](running.Wait())
	must.True(t, is, "a *PanicError")
	expect.Equal(t, caught.Error(), "panic: a mistake", "error")

	// The panic of All is logged once, and passed on.
	running, _ = NewGroup(t.Context())
	running.Go(func() error {
		All(4, func(i int) bool { panic(caught.Value) })
		return nil
	})
	expect.Equal(t, running.Wait().Error(), "panic: a mistake", "error of All")
}
