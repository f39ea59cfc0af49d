package proxy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// hangs returns a backend that answers with its name, except for polls and while it hangs. Then it
// only answers the end of its clients.
func hangs(t testing.TB, addr, name string, hung *atomic.Bool) netip.AddrPort {
	return tcpBackend(t, addr, func(c *net.TCPConn) {
		buf := make([]byte, 100)
		for {
			n, err := c.Read(buf)
			if err != nil {
				if hung.Load() { // as a program that notices only the end of its client
					fmt.Fprintln(c, "error: client gone")
				}
				return
			}
			if !hung.Load() && !strings.HasPrefix(string(buf[:n]), "poll") {
				fmt.Fprintln(c, name)
			}
		}
	})
}

// giveUp connects, sends a text, and closes the connection if there is no answer in time. It returns
// the answer.
func giveUp(t testing.TB, key vip.FrontendKey, text string, patience time.Duration) string {
	c := dial(t, key)
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return ""
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	line, _ := c.r.ReadString('\n')
	return strings.TrimSpace(line)
}

// crowd has n clients at a time that call f until stop is called.
func crowd(n int, f func()) (stop func()) {
	var clients sync.WaitGroup
	var over atomic.Bool
	for range n {
		clients.Go(func() {
			for !over.Load() {
				f()
			}
		})
	}
	return func() { over.Store(true); clients.Wait() }
}

// A backend that accepts and never answers is ejected after few clients, because others answer. When
// it answers again, it is readmitted.
// Slow: clients give up after 0.5 s until the backend is ejected, and until it is tried again.
func TestABackendThatNeverAnswersIsEjected(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		var never, hung atomic.Bool
		a, b, bad := hangs(t, f.backend, "a", &never), hangs(t, f.backend, "b", &never), hangs(t, f.backend, "bad", &hung)
		w.must(onVIP(key, vip.RoundRobin, a, b, bad))
		hung.Store(true)
		stop := crowd(20, func() { giveUp(t, key, "x\n", 500*time.Millisecond) })
		defer stop()
		row := w.waitFor(key, bad, vip.Ejected)
		expect.True(t, strings.HasPrefix(row.Reason, "no answer before the client gave up"), "%+v", row)
		if n := w.Failures(passiveKey(key, bad)); n.Unanswered < 3 || n.Ejections != 1 || n.Connects != 0 || n.Reason != "no answer before the client gave up" {
			t.Errorf("%+v", n)
		}
		wait.Until(t, "a client tries it in vain", func() bool { return strings.HasSuffix(w.row(key, bad).Reason, " times)") })
		hung.Store(false)
		w.waitFor(key, bad, vip.Healthy)
		stop()
		for _, addr := range []netip.AddrPort{a, b} {
			expect.Equal(t, w.Failures(passiveKey(key, addr)).Ejections, 0, "of a backend that works: ejections")
		}
	})
}

// In these services, clients end connections without an answer, as their protocol wants it. Such an
// end is no evidence against a backend. Slow: clients give up after 0.2 s, many times.
func TestSilenceThatIsNoEvidence(t *testing.T) {
	const patience = 200 * time.Millisecond
	request := func(t *testing.T, key vip.FrontendKey, text string) { giveUp(t, key, text, patience) }
	for name, c := range map[string]struct {
		serve func(*net.TCPConn) // nil: hangs
		ask   func(t *testing.T, key vip.FrontendKey, i int)
	}{
		"long polls": {nil, func(t *testing.T, key vip.FrontendKey, _ int) { request(t, key, "poll\n") }},
		"long polls beside requests": {nil, func(t *testing.T, key vip.FrontendKey, i int) {
			request(t, key, []string{"poll\n", "x\n"}[i%2])
		}},
		"logs, which are never answered": {func(c *net.TCPConn) { io.Copy(io.Discard, c) }, func(t *testing.T, key vip.FrontendKey, _ int) {
			request(t, key, "<13>a line of a log\n")
		}},
		"the server begins": {func(c *net.TCPConn) { fmt.Fprintln(c, "220 welcome"); io.Copy(io.Discard, c) }, func(t *testing.T, key vip.FrontendKey, _ int) {
			who(t, key)
		}},
		"half-closed with the request": {func(c *net.TCPConn) {
			io.Copy(io.Discard, c)
			time.Sleep(100 * time.Millisecond)
			fmt.Fprintln(c, "done")
		}, func(t *testing.T, key vip.FrontendKey, _ int) {
			c := dial(t, key)
			defer c.Close()
			fmt.Fprintln(c, "x")
			_ = c.CloseWrite()
			expect.Equal(t, c.line(t), "done")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t)
			key := freeKey(t, "127.96.0.1", vip.TCP)
			var all []netip.AddrPort
			var never atomic.Bool
			for i := range 3 {
				if c.serve == nil {
					all = append(all, hangs(t, "127.0.0.1", fmt.Sprint(i), &never))
				} else {
					all = append(all, tcpBackend(t, "127.0.0.1", c.serve))
				}
			}
			w.must(onVIP(key, vip.RoundRobin, all...))
			var clients sync.WaitGroup
			for i := range 20 {
				clients.Go(func() {
					for k := range 8 {
						c.ask(t, key, i+k)
					}
				})
			}
			clients.Wait()
			for _, addr := range all {
				expect.Equal(t, w.Failures(passiveKey(key, addr)).Ejections, 0, "ejections")
			}
		})
	}
}

// If all backends stop to answer at the same time, such as with their database, none is ejected.
// Slow: clients give up after 0.4 s, 60 times.
func TestAllBackendsStopToAnswer(t *testing.T) {
	w := newWatched(t)
	key := freeKey(t, "127.96.0.1", vip.TCP)
	var hung atomic.Bool
	all := []netip.AddrPort{hangs(t, "127.0.0.1", "a", &hung), hangs(t, "127.0.0.1", "b", &hung), hangs(t, "127.0.0.1", "c", &hung)}
	w.must(onVIP(key, vip.RoundRobin, all...))
	var missing atomic.Int64
	stop := crowd(10, func() {
		if giveUp(t, key, "x\n", 400*time.Millisecond) == "" {
			missing.Add(1)
		}
	})
	wait.Until(t, "they answer", func() bool { return w.row(key, all[2]).Health == vip.Healthy })
	hung.Store(true)
	wait.Until(t, "clients give up", func() bool { return missing.Load() >= 60 })
	stop()
	for _, addr := range all {
		expect.Equal(t, w.Failures(passiveKey(key, addr)).Ejections, 0, "ejections")
	}
}
