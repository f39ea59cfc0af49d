package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// serving is a server with one connection, in the fake time of a test.
type serving struct {
	near   net.Conn // the agent's end
	mu     sync.Mutex
	gone   time.Time // when the agent was given up; zero: it was not
	closed time.Time // when the server has closed the connection; zero: it has not
	number int       // of requests
	stop   func()
}

func serve(t *testing.T) *serving {
	near, far := net.Pipe()
	s := &serving{near: near}
	server := &Server{Tables: NewTables(&table.Clock{}), Log: slog.New(slog.DiscardHandler), Receive: func(r *Request, _ bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.number++; r == nil {
			s.gone = time.Now()
		}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		server.serve(ctx, newConn(far))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = time.Now()
	})
	s.stop = func() {
		cancel()
		near.Close()
		running.Wait()
	}
	return s
}

func (s *serving) givenUp() (at time.Time, requests int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone, s.number
}

func (s *serving) closedAt() time.Time {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// An agent that has announced keepalives is given up three of them after its last message, whatever the
// message is. An agent that has not announced any may be silent, but must begin.
func TestSilentAgent(t *testing.T) {
	const never = -1
	for _, c := range []struct {
		name     string
		messages []string // one second after another
		after    time.Duration
	}{
		{"stops", []string{`{"protocol":1,"keepalive":1000000000,"settings":{}}`, `{}`, `{"synced":true}`}, 5 * time.Second},
		{"stops in a message", []string{`{"protocol":1,"keepalive":1000000000,"settings":{}}`, `{"synced`}, 4 * time.Second},
		{"other period", []string{`{"protocol":1,"keepalive":2000000000,"settings":{}}`, `{}`}, 7 * time.Second},
		{"without keepalives", []string{`{"protocol":1,"settings":{}}`, `{"synced":true}`}, never},
		{"never begins", nil, 3 * time.Second},
	} {
		bubble.Run(t, c.name, func(t *testing.T) {
			s := serve(t)
			defer s.stop()
			go func() { _, _ = io.Copy(io.Discard, s.near) }()
			began := time.Now()
			for i, m := range c.messages {
				if i > 0 {
					time.Sleep(time.Second)
				}
				if strings.HasSuffix(m, "}") {
					m += "\n"
				}
				must.Get(s.near.Write([]byte(m)))(t)
			}
			if c.after == never {
				time.Sleep(time.Hour)
				if gone, _ := s.givenUp(); !gone.IsZero() {
					t.Errorf("given up after %s", gone.Sub(began))
				}
				return
			}
			time.Sleep(time.Until(began.Add(c.after - time.Millisecond)))
			if at := s.closedAt(); !at.IsZero() {
				t.Fatalf("closed after %s, want %s", at.Sub(began), c.after)
			}
			time.Sleep(time.Millisecond)
			if at := s.closedAt(); at.Sub(began) != c.after {
				t.Errorf("closed after %s, want %s", at.Sub(began), c.after)
			}
			// What has not begun was no agent.
			if gone, _ := s.givenUp(); gone.IsZero() != (c.messages == nil) {
				t.Errorf("given up: %v", !gone.IsZero())
			}
		})
	}
}

// Without changes, the agent sends an empty message each second and stays connected. If its main work
// hangs, it ends the connection within a second, and begins no other one.
func TestKeepalivesProveProgress(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := serve(t)
		defer s.stop()
		clock := &table.Clock{}
		hang := errors.New("no progress")
		began := time.Now()
		hangsAt := began.Add(time.Hour + 300*time.Millisecond)
		link := &Link{Settings: func() (announce.Settings, <-chan struct{}) { return announce.Settings{Node: "lb1"}, nil },
			Eligible: table.New(clock, announce.KeyOfEligible, nil), Tables: NewTables(clock), Log: slog.New(slog.DiscardHandler),
			Hangs: func() error {
				if time.Now().Before(hangsAt) {
					return nil
				}
				return hang
			}}
		agent := newConn(s.near)
		go func() { _ = link.follow(agent) }()
		ended := make(chan error, 1)
		go func() { ended <- link.send(t.Context(), agent) }()
		time.Sleep(time.Hour + 200*time.Millisecond)
		if gone, n := s.givenUp(); !gone.IsZero() || n < 3600 || n > 3610 {
			t.Errorf("given up: %v, %d messages in an hour", !gone.IsZero(), n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case err := <-ended:
			expect.Is(t, err, hang, "ended")
		default:
			t.Error("an agent that hangs stays connected")
		}
		link.Path = "/does/not/exist"
		expect.Is(t, link.connect(t.Context()), hang, "another connection")
	})
}

// stuttering is a connection with some deadlines that pass before there is something to read.
type stuttering struct {
	net.Conn
	passed int
}

func (s *stuttering) SetReadDeadline(time.Time) error { return nil }

func (s *stuttering) Read(b []byte) (int, error) {
	if s.passed--; s.passed >= 0 {
		return 0, os.ErrDeadlineExceeded
	}
	return copy(b, "x"), nil
}

// If the announcer itself did not run, a deadline has passed although the agent has sent something.
func TestReaderReadsBeforeItGivesUp(t *testing.T) {
	for passed, gives := range []bool{false, false, false, true} {
		c := newConn(&stuttering{passed: passed})
		c.every = keepaliveEvery
		n, err := c.Read(make([]byte, 1))
		if gave := err != nil; gave != gives || n != 1 && !gives {
			t.Errorf("%d deadlines: %d bytes, %v", passed, n, err)
		}
	}
}
