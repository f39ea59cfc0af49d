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
			expect.Equal(t, len(w.findings()), want, "findings %s", when)
			expect.AtMost(t, time.Since(last), firewallEvery, "time between two readings")
			last = time.Now()
		}
		none := func() ([]firewall.Drop, error) { return nil, nil }
		reads(0, "at first", none)
		reads(1, "with a rule", func() ([]firewall.Drop, error) {
			return []firewall.Drop{{Family: "ip", Table: "filter", Chain: "FORWARD", Path: firewall.ToBackend}}, nil
		})
		reads(1, "after an error", func() ([]firewall.Drop, error) { return nil, errors.New("busy") })
		reads(1, "after a panic", func() ([]firewall.Drop, error) { panic("a rule of an unknown kind") })
		reads(0, "without the rule", none)
		cancel()
		<-done
	})
}
