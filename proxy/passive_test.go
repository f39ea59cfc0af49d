package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// watched is a Target with a passive table and an event log.
type watched struct {
	*bench
	rows   *table.Table[vip.PassiveKey, vip.PassiveHealth]
	events *event.Log
}

func newWatched(t testing.TB) *watched {
	t.Helper()
	w := &watched{rows: table.New(&table.Clock{}, vip.KeyOfPassiveHealth, func(a, b vip.PassiveHealth) bool { return a == b }),
		events: event.NewLog(100, time.Now)}
	w.bench = newTarget(t, Options{Passive: w.rows, Report: w.events.Add})
	return w
}

func (w *watched) row(key vip.FrontendKey, addr netip.AddrPort) vip.PassiveHealth {
	row, _, _ := w.rows.Get(passiveKey(key, addr))
	return row
}

func passiveKey(key vip.FrontendKey, addr netip.AddrPort) vip.PassiveKey {
	return vip.PassiveKey{Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Protocol: key.Protocol, Addr: addr}
}

func (w *watched) waitFor(key vip.FrontendKey, addr netip.AddrPort, health vip.Health) vip.PassiveHealth {
	w.Helper()
	wait.Until(w, fmt.Sprintf("%s %s", addr, health), func() bool { return w.row(key, addr).Health == health }, func() any { return w.row(key, addr) })
	return w.row(key, addr)
}

// avoid returns until when clients skip a backend.
func (b *bench) avoid(key vip.FrontendKey, addr netip.AddrPort) int64 {
	return b.endpoint(key, addr).Passive.Avoid().Load()
}

// kinds returns the kinds of all events so far, and the messages.
func (w *watched) kinds() (kinds, messages []string) {
	list, _ := w.events.Since(0)
	for _, e := range list {
		kinds, messages = append(kinds, e.Kind), append(messages, e.Service+" "+e.Object+" "+e.Message)
	}
	return kinds, messages
}

// One of three backends refuses: it is ejected with its error, and no client notices.
func TestARefusingBackendIsEjectedAndNoClientFails(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		a, b, bad := tcpBackend(t, f.backend, named("a")), tcpBackend(t, f.backend, named("b")), closedPort(t, f.backend)
		w.must(onVIP(key, vip.RoundRobin, a, b, bad))
		for range 50 {
			if got := who(t, key); got != "a" && got != "b" {
				t.Fatal(got)
			}
		}
		row := w.waitFor(key, bad, vip.Ejected)
		if !strings.HasPrefix(row.Reason, "connect: connection refused") || row.Since == 0 || !row.Until.After(row.Since) {
			t.Errorf("%+v", row)
		}
		w.waitFor(key, a, vip.Healthy)
		w.waitFor(key, b, vip.Healthy)
		n := w.Failures(passiveKey(key, bad))
		if n.Last == 0 || n.Reason != "connect: connection refused" {
			t.Errorf("the last failure is %q at %v", n.Reason, n.Last)
		}
		if n.Connects == 0 || n.Retries != n.Connects || n.Ejections != 1 || n.Resets != 0 {
			t.Errorf("%+v", n)
		}
		expect.Equal(t, w.Failures(passiveKey(key, a)), (reconcile.Failures{}), "of a backend that works")
		wait.Until(t, "an event", func() bool { k, _ := w.kinds(); return len(k) > 0 })
		kinds, messages := w.kinds()
		if !slices.Equal(kinds, []string{"backend_ejected"}) ||
			!strings.HasPrefix(messages[0], "web "+bad.String()+" connections of clients failed: "+bad.String()+": connect: connection refused") {
			t.Errorf("%v %q", kinds, messages)
		}
		w.remove(key)
		wait.Until(t, "no rows are left", func() bool { return w.rows.Len() == 0 }, func() any { return w.rows.Len() })
	})
}

// The connections of a Target that drains change nothing of what the next one reports.
func TestOnlyTheLiveTargetReports(t *testing.T) {
	w := newWatched(t)
	key, next := freeKey(t, "127.96.0.1", vip.TCP), freeKey(t, "127.96.0.2", vip.TCP)
	a, bad := tcpBackend(t, "127.0.0.1", named("a")), closedPort(t, "127.0.0.1")
	w.must(onVIP(key, vip.RoundRobin, a, bad))
	who(t, key)
	who(t, key)
	w.waitFor(key, bad, vip.Ejected)
	w.Leave()
	expect.Equal(t, w.rows.Len(), 0, "rows after Leave")
	live := &watched{newTarget(t, Options{Passive: w.rows}), w.rows, w.events}
	live.must(onVIP(next, vip.RoundRobin, a, bad))
	who(t, next)
	who(t, next)
	live.waitFor(next, bad, vip.Ejected)
	expect.Succeed(t, w.Close())
	expect.Equal(t, live.row(next, bad).Health, vip.Ejected, "the health after the end of the former Target")
}

// An ejected backend that works again is tried by a client, and readmitted.
func TestAnEjectedBackendIsTriedAgain(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		a, bad := tcpBackend(t, f.backend, named("a")), closedPort(t, f.backend)
		w.must(onVIP(key, vip.RoundRobin, a, bad))
		for range 4 {
			who(t, key)
		}
		w.waitFor(key, bad, vip.Ejected)
		l := must.Get(net.Listen("tcp", bad.String()))(t)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(c, "b")
				c.Close()
			}
		}()
		wait.Until(t, "a client reaches it", func() bool { return who(t, key) == "b" })
		w.waitFor(key, bad, vip.Healthy)
	})
}

// A backend that accepts and resets before its first byte is ejected after three connections in a
// row, each one of a client that can't be sent elsewhere any more.
func TestABackendThatResetsIsEjected(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		good := tcpBackend(t, f.backend, named("good"))
		bad := tcpBackend(t, f.backend, func(c *net.TCPConn) { io.ReadFull(c, make([]byte, 1)); c.SetLinger(0) })
		w.must(onVIP(key, vip.RoundRobin, good, bad))
		served := 0
		for failed := 0; w.row(key, bad).Health != vip.Ejected; {
			c := dial(t, key)
			fmt.Fprintln(c, "request")
			switch line, err := c.r.ReadString('\n'); {
			case err == nil && line == "good\n":
				served++
			case errors.Is(err, unix.ECONNRESET):
				failed++
			default:
				t.Fatalf("%q, %v", line, err)
			}
			c.Close()
			must.AtMost(t, failed, 100, "not ejected after 100 resets")
		}
		if row := w.row(key, bad); !strings.HasPrefix(row.Reason, "reset before the first byte") {
			t.Errorf("%+v", row)
		}
		if n := w.Failures(passiveKey(key, bad)); n.Resets < 3 || n.Connects != 0 || n.Ejections != 1 {
			t.Errorf("%+v", n)
		}
		expect.True(t, served != 0, "nobody was served")
	})
}

// A backend that becomes usable again, because its health check passes, is tried at once.
func TestAPassingHealthCheckEndsAnEjection(t *testing.T) {
	w := newWatched(t)
	bad := closedPort(t, "127.0.0.1")
	f := onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, bad, tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b")))
	w.must(f)
	for w.avoid(f.Key, bad) == 0 {
		who(t, f.Key)
	}
	w.must(weigh(f, bad, 0))
	expect.True(t, w.avoid(f.Key, bad) != 0, "readmitted without a reason")
	w.must(f)
	expect.Equal(t, w.avoid(f.Key, bad), 0, "skipped until")
}

// A client that ends its direction or resets is no evidence against the backend.
func TestClientsAreNoEvidence(t *testing.T) {
	w := newWatched(t)
	key := freeKey(t, "127.96.0.1", vip.TCP)
	reset := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) { io.Copy(io.Discard, c); c.SetLinger(0) })
	quiet := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	w.must(onVIP(key, vip.RoundRobin, reset, quiet))
	for i := range 20 {
		c := dial(t, key)
		if i%4 < 2 {
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		} else {
			_ = c.SetLinger(0)
		}
		c.Close()
	}
	wait.Until(t, "all connections ended", func() bool { return w.Usage().Connections == 0 })
	for _, addr := range []netip.AddrPort{reset, quiet} {
		expect.Equal(t, w.Failures(passiveKey(key, addr)), (reconcile.Failures{}), "%s", addr)
	}
}

// A backend that doesn't answer is ejected after the connect timeout. Then one client at a time tries
// it.
// Slow: a connection attempt times out after 0.2 s, and the backoff grows, three times.
func TestASilentBackendIsTriedByOneClientAtATime(t *testing.T) {
	w := newWatched(t)
	key := freeKey(t, "127.96.0.1", vip.TCP)
	good, silent := tcpBackend(t, "127.0.0.1", named("good")), fullBacklog(t)
	f := onVIP(key, vip.RoundRobin, good, silent)
	f.Relay = &vip.ProxySettings{ConnectTimeout: 200 * time.Millisecond}
	w.must(f)
	for range 2 {
		who(t, key)
	}
	row := w.waitFor(key, silent, vip.Ejected)
	expect.Equal(t, row.Reason, "connect: timeout", "%+v", row)
	for n := w.Failures(passiveKey(key, silent)).Connects; n < 3; n = w.Failures(passiveKey(key, silent)).Connects {
		wait.Until(t, "its backoff ended", func() bool {
			return w.avoid(key, silent) <= w.balance.Now()
		})
		var clients []*client
		for range 20 {
			clients = append(clients, dial(t, key))
		}
		for _, c := range clients {
			must.Equal(t, c.line(t), "good")
			c.Close()
		}
		if now := w.Failures(passiveKey(key, silent)).Connects; now > n+1 {
			t.Errorf("%d of 20 clients tried it at the same time", now-n)
		}
	}
	if n := w.Failures(passiveKey(key, silent)); n.Ejections != 1 || n.Retries != n.Connects {
		t.Errorf("%+v", n)
	}
}

// UDP: a refusal (ICMP) ejects, and the datagram reaches another backend.
func TestUDPRefusalEjects(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.UDP)
		good, better, bad := udpBackend(t, f.backend, "good"), udpBackend(t, f.backend, "good"), closedUDP(t, f.backend)
		w.must(onVIP(key, vip.RoundRobin, good, better, bad, closedUDP(t, f.backend)))
		for range 8 { // no datagram is lost, the first included
			must.Equal(t, mustAsk(t, udpClient(t, key), "x"), "good")
		}
		row := w.waitFor(key, bad, vip.Ejected)
		expect.Contains(t, row.Reason, "refused", "%+v", row)
		w.waitFor(key, good, vip.Healthy)
	})
}
