package backoff

import (
	"context"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

func TestBackoffDoublesWithinBounds(t *testing.T) {
	b := Backoff{Lo: 100 * time.Millisecond, Hi: time.Second}
	for range 2 {
		for i, whole := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
			whole *= time.Millisecond
			if got := b.Next(); got < whole/2 || got > whole {
				t.Errorf("pause %d is %v, want half to all of %v", i, got, whole)
			}
		}
		b.Reset()
	}
}

func TestNapEndsEarly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		early := make(chan struct{}, 1)
		time.AfterFunc(time.Second, func() { early <- struct{}{} })
		for _, want := range []time.Duration{time.Second, time.Second + time.Minute} { // the second finds nothing left
			if let := Nap(t.Context(), time.Minute, early); !let || time.Since(began) != want {
				t.Errorf("Nap is %t after %v, want true after %v", let, time.Since(began), want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		expect.False(t, Nap(ctx, time.Minute, early), "Nap does not tell that its context has ended")
	})
}

func TestSleepEndsWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, c := range []struct {
			d    time.Duration
			let  bool
			took time.Duration
		}{{0, true, 0}, {time.Second, true, time.Second}, {time.Hour, false, time.Minute}, {-1, false, time.Minute}} {
			if let := Sleep(ctx, c.d); let != c.let || time.Since(began) != c.took {
				t.Errorf("Sleep(%v) is %t after %v, want %t after %v", c.d, let, time.Since(began), c.let, c.took)
			}
		}
	})
}
