package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

// A rule that drops packets is reported within a minute, and until it is gone. Neither an error nor a rule of another
// program at which the reading panics ends the agent, or changes what was found.
func TestFirewallWatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var w firewallWatch
		rules := make(chan func() ([]firewall.Drop, error))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.run(ctx, func() ([]firewall.Drop, error) { return (<-rules)() }, slog.New(slog.DiscardHandler))
		}()
		last := time.Now()
		reads := func(want int, when string, find func() ([]firewall.Drop, error)) {
			rules <- find
			synctest.Wait()
			expect.Equal(t, len(w.problems()), want, "problems %s", when)
			expect.AtMost(t, time.Since(last), firewallEvery, "time between two readings")
			last = time.Now()
		}
		none := func() ([]firewall.Drop, error) { return nil, nil }
		reads(0, "at first", none)
		reads(1, "with a rule", func() ([]firewall.Drop, error) {
			return []firewall.Drop{{Family: "ip", Table: "filter", Chain: "FORWARD", Path: firewall.ToBackend}}, nil
		})
		reads(1, "after an error", func() ([]firewall.Drop, error) { return nil, errors.New("busy") })
		reads(2, "with a chain that can't be read", func() ([]firewall.Drop, error) {
			return []firewall.Drop{{Family: "ip", Table: "filter", Chain: "a"}, {Family: "ip", Table: "filter", Chain: "b"}}, errors.New("a rule")
		})
		reads(2, "after another error", func() ([]firewall.Drop, error) { return nil, errors.New("busy") })
		reads(2, "after a panic", func() ([]firewall.Drop, error) { panic("a rule of an unknown kind") })
		line := w.checks()
		expect.Len(t, line, 1, "lines of the status")
		expect.Len(t, line[0].Problems, 2, "problems in the line")
		reads(0, "without the rule, beside a chain that can't be read", func() ([]firewall.Drop, error) { return []firewall.Drop{}, errors.New("a rule") })
		expect.Empty(t, w.checks(), "lines of the status without a problem")
		cancel()
		<-done
	})
}
