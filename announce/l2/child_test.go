//go:build linux

package l2_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// The tests run each Speaker in a process of its own, in the network namespace of its node: it can be
// stopped, continued and killed.

const childVariable = "IRONVIP_L2_TEST_SPEAKER"

func TestMain(m *testing.M) {
	if settings := os.Getenv(childVariable); settings != "" {
		if err := child(settings); err != nil {
			fmt.Fprintln(os.Stderr, "speaker:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// settings is the part of l2.Config that a child receives.
type settings struct {
	Interfaces []string
	Pools      []netip.Prefix
	LANs       []announce.LAN // others
	Device     string
	DeadMan    time.Duration
	Record     string
}

// line is what a child prints: a report, or the result of a command.
type line struct {
	Report *l2.Report
	Done   string
	Error  string
	Lapsed bool
}

// child is the main function of a child. It calls Refresh three times in each dead-man time, as the
// announcer does, unless it was told to pause.
func child(text string) error {
	var c settings
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(l line) { mu.Lock(); defer mu.Unlock(); _ = out.Encode(l) }
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	config := func(c settings) l2.Config {
		return l2.Config{LANs: append(c.LANs, announce.LAN{CIDRs: c.Pools, Interfaces: c.Interfaces}), Device: c.Device, DeadMan: c.DeadMan, Record: c.Record,
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Report: func(r l2.Report) { say(line{Report: &r}) }}
	}
	s, err := l2.New(ctx, config(c))
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	var paused atomic.Bool
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			say(line{Error: err.Error()})
		}
	})
	running.Go(func() {
		for tick := time.NewTicker(c.DeadMan / 3); ; {
			if !paused.Load() {
				// Any other error is one that the next refresh may not have.
				if err := s.Refresh(); errors.Is(err, l2.ErrLapsed) {
					say(line{Lapsed: true})
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Fields(in.Text())
		var addrs []netip.Addr
		for _, w := range words[1:] {
			if a, err := netip.ParseAddr(w); err == nil {
				addrs = append(addrs, a)
			}
		}
		var err error
		switch words[0] {
		case "own", "probe":
			for _, a := range addrs {
				err = errors.Join(err, s.Own(a, words[0] == "probe"))
			}
		case "own-range", "release-range": // FIRST COUNT
			n, _ := strconv.Atoi(words[2])
			for i, a := 1, addrs[0].Next(); i < n; i, a = i+1, a.Next() {
				addrs = append(addrs, a)
			}
			if words[0] == "release-range" {
				err = s.Release(addrs...)
				break
			}
			for _, a := range addrs {
				err = errors.Join(err, s.Own(a, false))
			}
		case "release":
			err = s.Release(addrs...)
		case "reannounce":
			s.Reannounce()
		case "pause":
			paused.Store(true)
		case "continue":
			paused.Store(false)
		case "interfaces":
			c.Interfaces = words[1:]
			err = s.Reconfigure(config(c))
		case "other-interfaces": // of the second LAN
			c.LANs = []announce.LAN{{CIDRs: c.LANs[0].CIDRs, Interfaces: words[1:]}}
			err = s.Reconfigure(config(c))
		}
		l := line{Done: words[0]}
		if err != nil {
			l.Error = err.Error()
		}
		say(l)
	}
	cancel()
	running.Wait()
	return nil
}

// speaker is a running child.
type speaker struct {
	t     testing.TB
	name  string
	mac   string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}

	mu     sync.Mutex
	lines  []line
	dones  int
	lapses int
}

func start(t testing.TB, n *netlab.Node, c settings) *speaker {
	t.Helper()
	text, err := json.Marshal(c)
	must.Succeed(t, err)
	s := &speaker{t: t, name: n.Name, mac: n.MAC("eth0"), ended: make(chan struct{})}
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out := must.Get(s.cmd.StdoutPipe())(t)
	n.Do(func() { err = s.cmd.Start() })
	must.Succeed(t, err)
	go s.read(out)
	t.Cleanup(s.quit)
	s.waitFor("gate open", func(r l2.Report) bool { return r.State == l2.GateOpen })
	return s
}

func (s *speaker) read(out io.Reader) {
	defer close(s.ended)
	for d := json.NewDecoder(out); ; {
		var l line
		if err := d.Decode(&l); err != nil {
			return
		}
		s.mu.Lock()
		s.lines = append(s.lines, l)
		if l.Done != "" {
			s.dones++
		}
		if l.Lapsed {
			s.lapses++
		}
		s.mu.Unlock()
		expect.Equal(s.t, l.Error, "", "%s: %s", s.name, l.Done)
	}
}

// do sends a command and waits until it was carried out.
func (s *speaker) do(command string, args ...any) {
	s.t.Helper()
	s.mu.Lock()
	before := s.dones
	s.mu.Unlock()
	text := command
	for _, a := range args {
		text += fmt.Sprint(" ", a)
	}
	_, err := io.WriteString(s.stdin, text+"\n")
	must.Succeed(s.t, err, "%s: %s", s.name, command)
	wait.Until(s.t, s.name+": "+command, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.dones > before
	})
}

func (s *speaker) own(addrs ...netip.Addr)     { s.t.Helper(); s.do("own", args(addrs)...) }
func (s *speaker) release(addrs ...netip.Addr) { s.t.Helper(); s.do("release", args(addrs)...) }

func args(addrs []netip.Addr) (all []any) {
	for _, a := range addrs {
		all = append(all, a)
	}
	return all
}

// reports returns all reports so far.
func (s *speaker) reports() (all []l2.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		if l.Report != nil {
			all = append(all, *l.Report)
		}
	}
	return all
}

// mark returns the number of reports so far, for since.
func (s *speaker) mark() int { return len(s.reports()) }

// waitFor waits for a report, and returns the first one.
func (s *speaker) waitFor(what string, ok func(l2.Report) bool) l2.Report {
	s.t.Helper()
	return s.since(0, what, ok)
}

// since waits for a report after a mark.
func (s *speaker) since(mark int, what string, ok func(l2.Report) bool) (found l2.Report) {
	s.t.Helper()
	wait.Until(s.t, s.name+": report of "+what, func() bool {
		all := s.reports()[mark:]
		i := slices.IndexFunc(all, ok)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	}, func() any { return s.reports() })
	return found
}

// is waits until the newest report of each address has the state.
func (s *speaker) is(state l2.State, addrs ...netip.Addr) {
	s.t.Helper()
	for _, a := range addrs {
		wait.Until(s.t, fmt.Sprintf("%s: %v is %s", s.name, a, state), func() bool {
			var last l2.State
			for _, r := range s.reports() {
				if r.Addr == a {
					last = r.State
				}
			}
			return last == state
		}, func() any { return s.reports() })
	}
}

func (s *speaker) lapsed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lapses
}

func (s *speaker) signal(sig os.Signal) {
	s.t.Helper()
	must.Succeed(s.t, s.cmd.Process.Signal(sig))
}

// kill ends the child like a crash.
func (s *speaker) kill() {
	s.signal(syscall.SIGKILL)
	<-s.ended
}

// quit ends the child gracefully.
func (s *speaker) quit() {
	s.stdin.Close()
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-s.ended:
	case <-time.After(wait.Timeout):
		s.t.Errorf("%s: the speaker doesn't end", s.name)
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	_ = s.cmd.Wait()
}
