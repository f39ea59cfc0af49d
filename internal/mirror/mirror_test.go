package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// row is a row of the tables of these tests.
type row struct {
	Name string
	N    int
}

func newTable() *table.Table[string, row] {
	return table.New(&table.Clock{}, func(r *row) string { return r.Name }, func(a, b row) bool { return a == b })
}

// contents returns the rows in words.
func contents(t *table.Table[string, row]) string {
	out := make([]int, 200)
	for name, r := range t.All() {
		i := 0
		fmt.Sscan(name, &i)
		out[i] = r.N
	}
	return strings.Trim(fmt.Sprint(out), "[] 0")
}

// counted is a connection that counts messages.
type counted struct {
	net.Conn
	writes *atomic.Int32
}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// pair is a server and a client of one connection, in the fake time of a test.
type pair struct {
	server    *Server
	client    *Client
	published *table.Table[string, row] // by the client
	mirrored  *table.Table[string, row] // at the server
	sent      atomic.Int32              // messages of the client, and its greeting
	end       func()                    // of the connection, and waits
	ended     error                     // of the client
	endedAt   time.Time

	mu     sync.Mutex
	events []string // of the server
}

func (p *pair) add(event string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event)
}

// happened returns the events of the server.
func (p *pair) happened() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.events, " ")
}

func newPair() *pair {
	p := &pair{published: newTable(), mirrored: newTable()}
	log := slog.New(slog.DiscardHandler)
	p.server = &Server{Mirror: []Mirrored{Into("rows", p.mirrored)}, Version: "v2", Log: log,
		Synced: func() { p.add("synced") }, Gone: func() { p.add("gone") }}
	p.client = &Client{Publish: []Published{Publish("rows", p.published)}, Server: "announcer", Name: "a", Log: log}
	return p
}

func (p *pair) connect(t *testing.T) {
	t.Helper()
	near, far := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.server.ServeConn(ctx, far) })
	running.Go(func() {
		p.ended = p.client.talk(ctx, newConn(counted{near, &p.sent}))
		p.endedAt = time.Now()
	})
	p.end = func() { cancel(); running.Wait() }
	synctest.Wait()
}

// A changed row is one message, and no timer delays it on either side: in the fake time of the test, none passes.
func TestChangesTravelAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPair()
		back, seen := newTable(), newTable()
		p.server.Publish, p.client.Mirror = []Published{Publish("back", back)}, []Mirrored{Into("back", seen)}
		for i := range 100 {
			p.published.Set(row{fmt.Sprint(i), 1})
		}
		p.connect(t)
		defer p.end()
		began := time.Now()
		expect.Equal(t, p.mirrored.Len(), 100)
		expect.Equal(t, p.sent.Load(), 3, "messages: a greeting, all rows, and that these are all")
		expect.Equal(t, p.happened(), "synced")
		p.published.Set(row{"7", 5})
		synctest.Wait()
		p.published.Delete("9")
		back.Set(row{"3", 3})
		synctest.Wait()
		expect.Equal(t, p.sent.Load(), 5, "messages")
		expect.Equal(t, contents(p.mirrored), contents(p.published))
		expect.Equal(t, contents(seen), "3")
		expect.True(t, p.client.State().Synced, "the client knows that this is all")
		expect.Equal(t, time.Since(began), 0, "have passed")
	})
}

// A connection begins with everything: what it doesn't name is gone when all is sent, which waits until the tables
// are ready. Before, what an earlier connection has brought stays.
func TestBeginsWithEverything(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPair()
		p.mirrored.Set(row{"1", 1})
		p.mirrored.Set(row{"2", 2})
		ready := p.published.Initializer()
		p.connect(t)
		p.published.Set(row{"2", 9})
		synctest.Wait()
		expect.Equal(t, contents(p.mirrored), "1 9", "before the table is ready")
		expect.Equal(t, p.happened(), "")
		ready()
		synctest.Wait()
		expect.Equal(t, contents(p.mirrored), "9", "once it is")
		p.end()
		expect.Equal(t, contents(p.mirrored), "9", "after the connection")
		expect.Equal(t, p.happened(), "synced gone")
	})
}

// A table that the other side doesn't know is passed over.
func TestUnknownTable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPair()
		later := newTable()
		p.client.Publish = append([]Published{Publish("later", later)}, p.client.Publish...)
		later.Set(row{"1", 1})
		p.published.Set(row{"2", 2})
		p.connect(t)
		later.Delete("1")
		p.published.Set(row{"3", 3})
		synctest.Wait()
		expect.Equal(t, contents(p.mirrored), "2 3")
		p.end()
	})
}

// A client that is silent is given up after three seconds, in a message or between two. A peer that says nothing at
// all was no client.
func TestSilentClient(t *testing.T) {
	greeting := fmt.Sprintf("{\"protocol\":%d}\n", Protocol)
	for sent, events := range map[string]string{greeting: "gone", greeting + "\x05": "gone", "": "", `{"protocol`: ""} {
		bubble.Test(t, func(t *testing.T) {
			p := newPair()
			near, far := net.Pipe()
			defer near.Close()
			go func() { _, _ = io.Copy(io.Discard, near) }()
			go func() { _, _ = near.Write([]byte(sent)) }()
			began := time.Now()
			p.server.ServeConn(t.Context(), far)
			expect.Equal(t, time.Since(began), 3*time.Second, "%q: given up", sent)
			expect.Equal(t, p.happened(), events, "%q", sent)
		})
	}
}

// Without changes, a client stays connected. If its main work hangs, it ends the connection within a second, and begins
// no other one.
func TestKeepalivesProveProgress(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPair()
		hang := errors.New("no progress")
		hangsAt := time.Now().Add(time.Hour + 300*time.Millisecond)
		p.client.Hangs = func() error {
			if time.Now().Before(hangsAt) {
				return nil
			}
			return hang
		}
		p.connect(t)
		time.Sleep(time.Hour + 200*time.Millisecond)
		synctest.Wait()
		expect.Equal(t, p.happened(), "synced")
		n := p.sent.Load()
		must.True(t, n >= 3600 && n <= 3610, "%d messages in an hour", n)
		time.Sleep(time.Second)
		p.end()
		expect.Is(t, p.ended, hang)
		expect.True(t, p.endedAt.Sub(hangsAt) < time.Second, "ended after %s", p.endedAt.Sub(hangsAt))
		expect.Equal(t, p.happened(), "synced gone")
		expect.Is(t, p.client.connect(t.Context()), hang, "another connection")
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

// If the server itself did not run, a deadline has passed although the client has sent something.
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

// Another client is refused while one is connected, and so is one of another version. Each is told why. The same
// client may connect again, which ends its former connection.
func TestRefusedClient(t *testing.T) {
	for greeting, want := range map[string]string{
		`{"protocol":1,"keepalive":1000000000,"agent":"b","settings":{}}`: "version 1 of the protocol, this one 4: install the same version",
		fmt.Sprintf(`{"protocol":%d,"client":"b"}`, Protocol):             "another agent is connected, with the state directory a, and this one has b: stop one of them",
		fmt.Sprintf(`{"protocol":%d,"client":"a"}`, Protocol):             `"version":"v2"`,
	} {
		bubble.Test(t, func(t *testing.T) {
			p := newPair()
			p.connect(t)
			near, far := net.Pipe()
			go p.server.ServeConn(t.Context(), far)
			must.Get(near.Write([]byte(greeting + "\n")))(t)
			answer := make([]byte, 1000)
			n := must.Get(near.Read(answer))(t)
			expect.Contains(t, string(answer[:n]), want)
			synctest.Wait()
			expect.Equal(t, p.endedAt.IsZero(), !strings.Contains(want, "v2"), "the first client stays")
			near.Close()
			p.end()
		})
	}
	c := newConn(nil)
	c.in.Reset(strings.NewReader(fmt.Sprintf(`{"protocol":%d,"refused":"why"}`+"\n", Protocol)))
	_, err := c.greeted()
	expect.Equal(t, fmt.Sprint(err), "refused: why")
}

// Whatever a client sends, the server reads it to its end, and changes nothing before a message of its protocol.
func FuzzStream(f *testing.F) {
	greeting := fmt.Sprintf("{\"protocol\":%d}\n", Protocol)
	for _, seed := range []string{"", "{}\n", greeting, greeting + "\x05\x00\xff", "null\n", "{\"protocol\":\"x\"}\n", "[1]\n", string(session(f))} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		near, far := net.Pipe()
		s := &Server{Mirror: []Mirrored{Into("rows", newTable())}, Log: slog.New(slog.DiscardHandler)}
		s.Change = func(apply func()) {
			if apply(); !strings.HasPrefix(string(stream), "{") {
				t.Error("a message of another protocol is passed on")
			}
		}
		go func() {
			_, _ = near.Write(stream)
			near.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, near) }() // answers
		s.ServeConn(t.Context(), far)
	})
}

// session returns what a client sends.
func session(t testing.TB) []byte {
	near, far := net.Pipe()
	rows := newTable()
	rows.Set(row{"1", 1})
	go func() {
		c := newConn(near)
		_ = c.greet(hello{})
		_ = passAll(t.Context(), c, []Published{Publish("rows", rows)})
	}()
	out := make([]byte, 4096)
	n := 0
	for range 3 { // a greeting, a row, and that this is all
		n += must.Get(far.Read(out[n:]))(t)
	}
	far.Close()
	return out[:n]
}
