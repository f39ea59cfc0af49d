//go:build system && long

package fleet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/wait"
)

// maxConnections is the limit of the lab's Consul for each host. An agent has about five
// connections.
const maxConnections = 16

// Consul refuses connections of a host, or requests. The agents name the limit and go on with their
// traffic, and write again when it no longer applies.
func TestConsulLimits(t *testing.T) {
	t.Parallel()
	l := newLab(t, shape{servers: 1, reuse: time.Hour, consul: map[string]any{
		"limits": map[string]any{"http_max_conns_per_client": maxConnections},
	}}).record()
	l.scenario(t, "connections of a host", func() { l.fewConnections(l.agents[1]) })
	l.scenario(t, "requests", l.fewRequests)
}

// fewConnections has other programs on the host of an agent take all of its connections to Consul
// while the agent starts.
func (l *lab) fewConnections(a *agent) {
	l.t.Helper()
	l.during(20, func() {})
	l.settles()
	l.remembers(a)
	l.during(50, func() {
		a.proc.Kill()
		held := l.takeConnections(a)
		l.start(a)
		l.reports(a, "consul takes no more connections from this host")
		l.answers(a, 5)
		l.withoutStore(a)
		l.allWrite(l.others(a))
		for _, c := range held {
			c.Close()
		}
		l.allWrite(l.agents)
	})
}

// takeConnections opens connections to Consul from the agent's host until Consul accepts no more.
func (l *lab) takeConnections(a *agent) (held []net.Conn) {
	l.t.Helper()
	l.eventually("Consul refuses a connection", func(ctx context.Context) error {
		for {
			c, err := a.node.DialContext(ctx, "tcp", l.consul[0].Addr.String())
			if err != nil {
				return err
			}
			if !accepted(c) {
				c.Close()
				break
			}
			l.t.Cleanup(func() { c.Close() })
			held = append(held, c)
		}
		if len(held) < maxConnections-1 { // those of the killed agent still count; Consul accepts one less than the limit
			return fmt.Errorf("it has accepted %d", len(held))
		}
		return nil
	})
	return held
}

// accepted reports whether Consul answers a request on a connection. It answers 429, or not at all,
// on one that it refuses.
func accepted(c net.Conn) bool {
	if _, err := io.WriteString(c, "GET /v1/status/leader HTTP/1.1\r\nHost: consul\r\n\r\n"); err != nil {
		return false
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return false
	}
	io.Copy(io.Discard, answer.Body)
	return answer.StatusCode == http.StatusOK
}

// fewRequests has Consul accept one read and one write per second, for all hosts together.
func (l *lab) fewRequests() {
	limit := func(mode string) {
		l.consul[0].For(l.t).Reload(map[string]any{"limits": map[string]any{
			"request_limits": map[string]any{"mode": mode, "read_rate": 1, "write_rate": 1},
		}})
	}
	l.during(100, func() {
		limit("enforcing")
		for _, a := range l.agents {
			l.reports(a, "rate limit exceeded")
			l.answers(a, 5)
		}
		wait.Until(l.t, "a write is refused for the limit", func() bool {
			for _, o := range l.history().Ops {
				if strings.Contains(o.Answer, "rate limit exceeded") {
					return true
				}
			}
			return false
		})
		limit("disabled")
		l.allWrite(l.agents)
	})
}

// reports waits until an agent's status gives the reason why it can't use Consul.
func (l *lab) reports(a *agent, why string) {
	l.t.Helper()
	l.eventually(a.name+" reports: "+why, func(ctx context.Context) error {
		status, err := a.api.Status(ctx)
		if err != nil {
			return err
		}
		for _, c := range status.Checks {
			if c.Name == "store" && strings.Contains(c.Message, why) && c.Hint != "" {
				return nil
			}
		}
		return fmt.Errorf("its checks are %+v", status.Checks)
	})
}
