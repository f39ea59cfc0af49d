//go:build system || vm

package announce

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// load sends requests to a VIP at a steady rate, one connection each, and records their results.
type load struct {
	t        testing.TB
	from     *netlab.Node
	to       netip.AddrPort
	patience time.Duration // how long a request waits for its answer
	query    []byte        // a datagram, which is a request; nil: a request is a connection
	stalls   *wait.Stalls
	stop     context.CancelFunc
	done     sync.WaitGroup

	mu         sync.Mutex
	results    []result
	open, most int // requests, now and at most
	stalled    int // requests without a result: this process did not run
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
	return startPatientLoad(t, from, to, every, requestTime)
}

// startPatientLoad is startLoad with another time that a request waits for its answer.
func startPatientLoad(t testing.TB, from *netlab.Node, to netip.Addr, every, patience time.Duration) *load {
	return startRequests(&load{t: t, from: from, to: netip.AddrPortFrom(to, servicePort), patience: patience}, every)
}

// startRequests begins a load that is not running yet.
func startRequests(l *load, every time.Duration) *load {
	l.stalls = wait.WatchStalls(l.t)
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
	l.t.Cleanup(func() { cancel(); l.done.Wait() })
	return l
}

func (l *load) request() {
	r := result{began: time.Now()}
	l.mu.Lock()
	l.open++
	l.most = max(l.most, l.open)
	l.mu.Unlock()
	ask := l.ask
	if l.query != nil {
		ask = l.askDatagram
	}
	r.err = ask(r.began.Add(l.patience))
	r.took = time.Since(r.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	// A late answer, or none, is no evidence if this machine stood still meanwhile.
	if errors.Is(r.err, os.ErrDeadlineExceeded) && l.stalls.Since(r.began) > 0 {
		l.stalled++
		return
	}
	l.results = append(l.results, r)
}

// ask sends a line and waits for one. Only the system calls that begin the connection are made in the
// namespace: a goroutine that waits there would keep a thread.
func (l *load) ask(deadline time.Time) error {
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(l.to.Port()), Addr: l.to.Addr().As16()}
	family := unix.AF_INET6
	if l.to.Addr().Is4() {
		to, family = &unix.SockaddrInet4{Port: int(l.to.Port()), Addr: l.to.Addr().As4()}, unix.AF_INET
	}
	var fd int
	var err error
	l.from.Do(func() {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err == nil {
			err = errors.Join(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), // leaves no TIME_WAIT
				ignore(unix.Connect(fd, to), unix.EINPROGRESS))
		}
	})
	if err != nil {
		unix.Close(fd)
		return err
	}
	f := os.NewFile(uintptr(fd), "request")
	defer f.Close()
	if err := f.SetDeadline(deadline); err != nil {
		return err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		if code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
			failed = cmp.Or(err, error(syscall.Errno(code)))
			return true
		}
		_, err := unix.Getpeername(int(fd))
		return err == nil // connected
	})
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	if _, err := f.WriteString("x\n"); err != nil {
		return err
	}
	_, err = bufio.NewReader(f).ReadString('\n')
	return err
}

// askDatagram sends the query once and waits for a datagram.
func (l *load) askDatagram(deadline time.Time) error {
	var c net.Conn
	var err error
	l.from.Do(func() { c, err = net.Dial("udp", l.to.String()) })
	if err != nil {
		return err
	}
	defer c.Close()
	if err = c.SetDeadline(deadline); err == nil {
		_, err = c.Write(l.query)
	}
	if err == nil {
		_, err = c.Read(make([]byte, 1500))
	}
	return err
}

// ignore returns an error, or nil if it is the expected one.
func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
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
	stalled        int           // requests without a result
	reset          int           // of the lost ones: reset, and not without an answer
	open           int           // the most at one time
	gap            time.Duration // the longest time between the starts of two answered requests
	// outage is the time from the start of the first lost request to that of the first one from which
	// on all were answered.
	outage time.Duration
	first  error
}

func (o outcome) String() string {
	return fmt.Sprintf("%d requests, %d lost (%d reset), %d stalled, longest gap %s, first error %v", o.requests, o.lost, o.reset, o.stalled, o.gap.Round(time.Millisecond), o.first)
}

// end ends the load and returns its outcome.
func (l *load) end() outcome {
	l.stop()
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	o := outcome{open: l.most, stalled: l.stalled}
	var last, lost time.Time
	ended := true
	results := sorted(l.results)
	for _, r := range results {
		o.requests++
		if r.err != nil {
			if errors.Is(r.err, syscall.ECONNRESET) {
				o.reset++
			}
			if o.lost++; o.first == nil {
				o.first, lost = r.err, r.began
			}
			ended = false
			continue
		}
		if !ended {
			o.outage, ended = r.began.Sub(lost), true
		}
		if !last.IsZero() {
			o.gap = max(o.gap, r.began.Sub(last))
		}
		last = r.began
	}
	if !ended {
		o.outage = results[len(results)-1].began.Sub(lost)
	}
	return o
}

// failed returns the lost requests.
func (l *load) failed() []result {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.results), func(r result) bool { return r.err == nil })
}

func sorted(r []result) []result {
	return slices.SortedFunc(slices.Values(r), func(a, b result) int { return a.began.Compare(b.began) })
}
