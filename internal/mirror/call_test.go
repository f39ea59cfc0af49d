package mirror

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// A question gets its own answer, also when others are answered before it, and with the error of the method.
func TestQuestionsAreAnswered(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPair()
		slow := make(chan struct{})
		p.server.Answer = []Method{
			Answer("length", func(_ context.Context, text string) (int, error) {
				if text == "slow" {
					<-slow
				}
				return len(text), nil
			}),
			Answer("fails", func(context.Context, bool) (row, error) { return row{}, errors.New("it is late") }),
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Ask[string, int](over, p.client, "length", "x")
		expect.Is(t, err, context.Canceled)

		p.connect(t)
		defer p.end()
		var asking sync.WaitGroup
		asking.Go(func() {
			n, err := Ask[string, int](t.Context(), p.client, "length", "slow")
			expect.Equal(t, n, 4)
			expect.Succeed(t, err)
		})
		synctest.Wait()
		expect.Equal(t, must.Get(Ask[string, int](t.Context(), p.client, "length", "at once"))(t), 7)
		p.published.Set(row{"7", 5}) // tables go on meanwhile
		synctest.Wait()
		expect.Equal(t, contents(p.mirrored), contents(p.published))
		close(slow)
		asking.Wait()
		for method, want := range map[string]string{"fails": "it is late", "other": "unknown method other"} {
			_, err := Ask[bool, row](t.Context(), p.client, method, true)
			if err == nil || err.Error() != want {
				t.Errorf("%s: %v, want %q", method, err, want)
			}
		}
		expect.Equal(t, must.Get(Ask[string, int](t.Context(), p.client, "length", "abc"))(t), 3, "after errors")
	})
}

// Nobody waits for an answer that can't come any more: its asker's time is over, or the connection has ended.
func TestQuestionsEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPair()
		release := make(chan struct{}, 1)
		p.server.Answer = []Method{
			Answer("hangs", func(ctx context.Context, _ bool) (int, error) {
				select {
				case <-release:
				case <-ctx.Done():
				}
				return 1, nil
			}),
			Answer("works", func(context.Context, bool) (int, error) { return 2, nil })}
		p.connect(t)
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		asking.Go(func() {
			_, err := Ask[bool, int](ctx, p.client, "hangs", true)
			expect.Is(t, err, context.Canceled)
		})
		synctest.Wait()
		cancel()
		asking.Wait()
		asking.Go(func() {
			n, err := Ask[bool, int](t.Context(), p.client, "hangs", true)
			if n != 1 && (err == nil || !strings.Contains(err.Error(), "ended before the answer")) {
				t.Errorf("%d, error %v", n, err)
			}
		})
		synctest.Wait()
		expect.Equal(t, must.Get(Ask[bool, int](t.Context(), p.client, "works", true))(t), 2, "beside them")
		release <- struct{}{} // one of both answers
		synctest.Wait()
		expect.Equal(t, must.Get(Ask[bool, int](t.Context(), p.client, "works", true))(t), 2, "afterwards")
		p.end()
		asking.Wait()
		p.client.lost(errors.New("it is off"), Needed)
		_, err := Ask[bool, int](t.Context(), p.client, "works", true)
		if err == nil || err.Error() != "no connection to the announcer: it is off" {
			t.Errorf("without a connection: %v", err)
		}
	})
}
