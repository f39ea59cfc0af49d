package api

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/api/status/statustest"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// openPages opens the streams of overviews, and reads until each has sent its first state: together, because that of the
// busiest services takes a second.
func openPages(t *testing.T, at net.Addr, pages int) (connections []*net.TCPConn) {
	t.Helper()
	first := map[*net.TCPConn]string{}
	for range pages {
		for path, until := range map[string]string{v1.PathWatchServices + "?view=summary": `{"synced":true}`, v1.PathTop + "?interval=1s&limit=8&by=bytes": `"items":`, v1.PathEvents: "HTTP/1.1 200"} {
			c := must.Get(net.Dial("tcp", at.String()))(t)
			must.Get(fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: application/x-ndjson\r\n\r\n", path, at))(t)
			connections = append(connections, c.(*net.TCPConn))
			first[c.(*net.TCPConn)] = until
		}
	}
	for _, c := range connections {
		lines := bufio.NewReader(c)
		for {
			line := must.Get(lines.ReadString('\n'))(t)
			if strings.Contains(line, first[c]) {
				break
			}
		}
	}
	return connections
}

// vanish ends a connection as the crash of its host does: nothing is sent to the other end, which finds out when it sends
// something. Without the right to do so, it resets the connection.
func vanish(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	must.Succeed(t, err)
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR, 1) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		must.Succeed(t, c.SetLinger(0))
	}
	c.Close()
}

// heap returns the bytes in use.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Slow: a stream of the busiest services sends a line each second, and two lines show that a client is gone.
//
// Pages that are closed cost nothing: no goroutine, and no memory that grows with the pages. Half of them end
// without a word.
func TestClosedPagesCostNothing(t *testing.T) {
	const services, pages = 1000, 20
	w := statustest.New()
	stats := &reconciletest.Statistics{}
	d := depsOf(w)
	d.Forwarding.Statistics = stats
	d.Events = event.NewLog(100, time.Now)
	for i := range services {
		w.Healthy(i)
		stats.Set(statustest.FrontendNo(i), reconcile.Breakdown{Traffic: carried(uint64(i))})
	}
	s := New(d)
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer scope.Go(t, func(ctx context.Context) error { return s.Serve(ctx, l, nil) })()
	if a, err := http.Get("http://" + l.Addr().String() + v1.PathHealthz); err != nil { // serving has begun
		t.Fatal(err)
	} else {
		a.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	change := func(i int) {
		backend := statustest.OneBackend.Key(statustest.ServiceNo(i / 2))
		if i%2 == 0 { // until the next change, so that each of the two is a line
			w.Overrides.Set(vip.BackendState{Backend: backend, State: vip.Drain})
		} else {
			w.Overrides.Delete(vip.OverrideKey{BackendKey: backend})
		}
		d.Events.Add(event.Event{Kind: "test", Message: fmt.Sprint(i)})
	}
	visit := func(pages int) (open int) {
		goroutines := runtime.NumGoroutine()
		connections := openPages(t, l.Addr(), pages)
		open = heap()
		for i, c := range connections {
			if i < len(connections)/2 {
				vanish(t, c)
			} else {
				c.Close()
			}
		}
		turn := 0
		wait.Until(t, "nothing is left of the pages", func() bool {
			turn++
			change(turn % (2 * services)) // the next line tells the agent that a client is gone
			return runtime.NumGoroutine() <= goroutines
		}, func() any { return runtime.NumGoroutine() })
		return open
	}
	visit(pages) // what is made once; what earlier tests left ends meanwhile
	before := heap()
	open := visit(pages)
	after := heap()
	if open < after+services*200 {
		t.Errorf("%d bytes with pages, %d without: the test does not see what they cost", open, after)
	}
	if after > before+(open-after)/10 {
		t.Errorf("%d bytes after the pages, %d with them, %d before", after, open, before)
	}
}
