package firewall

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

// A rule that drops packets is reported within a minute, and until it is gone. Neither an error nor a rule of another
// program at which the reading panics ends the agent, or changes what was found.
func TestWatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var w Watch
		rules := make(chan func() ([]Drop, error))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx, func() ([]Drop, error) { return (<-rules)() }, slog.New(slog.DiscardHandler))
		}()
		last := time.Now()
		reads := func(want int, when string, find func() ([]Drop, error)) {
			rules <- find
			synctest.Wait()
			expect.Equal(t, len(w.Problems()), want, "problems %s", when)
			expect.AtMost(t, time.Since(last), watchEvery, "time between two readings")
			last = time.Now()
		}
		none := func() ([]Drop, error) { return nil, nil }
		reads(0, "at first", none)
		reads(1, "with a rule", func() ([]Drop, error) {
			return []Drop{{Family: "ip", Table: "filter", Chain: "FORWARD", Path: ToBackend}}, nil
		})
		reads(1, "after an error", func() ([]Drop, error) { return nil, errors.New("busy") })
		reads(2, "with a chain that can't be read", func() ([]Drop, error) {
			return []Drop{{Family: "ip", Table: "filter", Chain: "a"}, {Family: "ip", Table: "filter", Chain: "b"}}, errors.New("a rule")
		})
		reads(2, "after another error", func() ([]Drop, error) { return nil, errors.New("busy") })
		reads(2, "after a panic", func() ([]Drop, error) { panic("a rule of an unknown kind") })
		reads(0, "without the rule, beside a chain that can't be read", func() ([]Drop, error) { return []Drop{}, errors.New("a rule") })
		cancel()
		<-done
	})
}
