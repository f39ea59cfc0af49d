//go:build system || vm

package announce

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// load sends requests to a VIP at a steady rate, one connection each, and records their results.
type load struct {
	t    testing.TB
	from *netlab.Node
	to   netip.AddrPort
	stop context.CancelFunc
	done sync.WaitGroup

	mu         sync.Mutex
	results    []result
	open, most int // requests, now and at most
}

type result struct {
	began time.Time
	took  time.Duration
	err   error
}

// requestTime bounds a request. TCP repeats a lost SYN after 1 s, so a request that is not answered
// by then was lost.
const requestTime = 900 * time.Millisecond

func startLoad(t testing.TB, from *netlab.Node, to netip.Addr, every time.Duration) *load {
	l := &load{t: t, from: from, to: netip.AddrPortFrom(to, servicePort)}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	tick := time.NewTicker(every)
	l.done.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				l.done.Go(l.request)
			}
		}
	})
	t.Cleanup(func() { cancel(); l.done.Wait() })
	return l
}

func (l *load) request() {
	r := result{began: time.Now()}
	l.mu.Lock()
	l.open++
	l.most = max(l.most, l.open)
	l.mu.Unlock()
	r.err = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), requestTime)
		defer cancel()
		c, err := l.from.DialContext(ctx, "tcp", l.to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(r.began.Add(requestTime))
		if _, err := fmt.Fprintln(c, "x"); err != nil {
			return err
		}
		_, err = bufio.NewReader(c).ReadString('\n')
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // leaves no TIME_WAIT
		}
		return err
	}()
	r.took = time.Since(r.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.results = append(l.results, r)
}

// awaitAnswers waits until n requests that begin from now on are answered.
func (l *load) awaitAnswers(n int) {
	l.t.Helper()
	began := time.Now()
	wait.Until(l.t, fmt.Sprintf("answers of %s", l.to), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		answered := 0
		for _, r := range l.results {
			if r.err == nil && r.began.After(began) {
				answered++
			}
		}
		return answered >= n
	})
}

// outcome is what a load has measured.
type outcome struct {
	requests, lost int
	reset          int           // of the lost ones: reset, and not without an answer
	open           int           // the most at one time
	gap            time.Duration // the longest time between the starts of two answered requests
	first          error
}

func (o outcome) String() string {
	return fmt.Sprintf("%d requests, %d lost (%d reset), longest gap %s, first error %v", o.requests, o.lost, o.reset, o.gap.Round(time.Millisecond), o.first)
}

// end ends the load and returns its outcome.
func (l *load) end() outcome {
	l.stop()
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	o := outcome{open: l.most}
	var last time.Time
	for _, r := range sorted(l.results) {
		o.requests++
		if r.err != nil {
			if errors.Is(r.err, syscall.ECONNRESET) {
				o.reset++
			}
			if o.lost++; o.first == nil {
				o.first = r.err
			}
			continue
		}
		if !last.IsZero() {
			o.gap = max(o.gap, r.began.Sub(last))
		}
		last = r.began
	}
	return o
}

func sorted(r []result) []result {
	return slices.SortedFunc(slices.Values(r), func(a, b result) int { return a.began.Compare(b.began) })
}
