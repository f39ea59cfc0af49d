package healthport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/inherit"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const maxWait = time.Minute // bounds every wait

// world is a running Server on loopback addresses.
type world struct {
	*testing.T
	*Server
	compiled *table.Table[vip.ServiceKey, pipeline.Compiled]
	host     *table.Table[struct{}, hostnet.Snapshot]
	healthy  atomic.Bool
	end      func() error
}

func newWorld(t *testing.T, addrs ...string) *world { return newWorldWith(t, Options{}, addrs...) }

func newWorldWith(t *testing.T, o Options, addrs ...string) *world {
	clock := table.NewClock(time.Now())
	w := &world{
		T:        t,
		compiled: table.New(clock, pipeline.KeyOfCompiled, pipeline.SameCompiled),
		host:     table.New(clock, hostnet.KeyOf, hostnet.Same),
	}
	w.healthy.Store(true)
	o.Compiled, o.Host, o.NodePorts = w.compiled, w.host, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	o.Healthy, o.Events = w.healthy.Load, event.NewLog(100, time.Now)
	w.Server = New(o)
	w.limit.Who = func(c net.Conn) connlimit.Client { // the clients of a test are one user
		return connlimit.OfAddress(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
	}
	w.addresses(addrs...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Server.Run(ctx) }()
	ended := false
	w.end = func() error {
		ended = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if !ended {
			w.end()
		}
	})
	return w
}

func (w *world) addresses(addrs ...string) {
	var s hostnet.Snapshot
	for _, a := range addrs {
		s.Addrs = append(s.Addrs, hostnet.Addr{Prefix: netip.PrefixFrom(netip.MustParseAddr(a), 8), Link: "lo"})
	}
	w.host.Set(s)
}

func key(name string) vip.ServiceKey { return vip.ServiceKey{Namespace: "default", Name: name} }

// row sets a service's port and number of ready backends.
func (w *world) row(name string, port uint16, ready int) {
	w.compiled.Set(pipeline.Compiled{Service: &vip.Service{Key: key(name)}, HealthPort: port, LocalReady: int32(ready)})
}

// get sends one request; a refused connection is an error.
func get(addr string, port uint16) (status int, header http.Header, answer body, err error) {
	c := http.Client{Timeout: maxWait, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get(fmt.Sprintf("http://%s/healthz", netip.AddrPortFrom(netip.MustParseAddr(addr), port)))
	if err != nil {
		return 0, nil, answer, err
	}
	defer r.Body.Close()
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err = d.Decode(&answer)
	return r.StatusCode, r.Header, answer, err
}

// expect waits for an answer of a service with a status and a count.
func (w *world) expect(addr string, port uint16, service string, status, ready int) {
	w.Helper()
	var got string
	w.until(fmt.Sprintf("%s:%d answers %d for %s with %d", addr, port, status, service, ready), func() bool {
		s, h, b, err := get(addr, port)
		got = fmt.Sprint(s, h, b, err)
		return err == nil && s == status && b.Service.Name == service && b.LocalEndpoints == ready && h.Get(weightHeader) == fmt.Sprint(ready)
	}, &got)
}

// expectClosed waits until the port has no listener.
func (w *world) expectClosed(addr string, port uint16) {
	w.Helper()
	w.until(fmt.Sprintf("%s:%d is closed", addr, port), func() bool {
		_, _, _, err := get(addr, port)
		return err != nil
	}, nil)
}

func (w *world) until(what string, ok func() bool, got *string) {
	w.Helper()
	wait.Until(w.T, what, ok, func() any {
		if got == nil {
			return ""
		}
		return "got " + *got
	})
}

// freePort returns a port without a listener at the address, reserved for the test.
func freePort(t *testing.T, addr string) uint16 {
	t.Helper()
	return freeport.Reserve(t, nil, netip.MustParseAddr(addr))[1]
}

const here = "127.88.0.1"

func TestAnswers(t *testing.T) {
	w := newWorld(t, here)
	port := freePort(t, here)
	w.row("web", port, 2)
	w.expect(here, port, "web", 200, 2)
	w.row("web", port, 0)
	w.expect(here, port, "web", 503, 0)
	w.row("web", port, 1)
	w.expect(here, port, "web", 200, 1)

	w.healthy.Store(false)
	status, header, answer, err := get(here, port)
	if err != nil || status != 503 || answer.ServiceProxyHealthy || answer.LocalEndpoints != 1 || header.Get(weightHeader) != "1" {
		t.Errorf("dataplane unhealthy: %d %v %+v %v", status, header, answer, err)
	}
	w.healthy.Store(true)
	status, header, answer, err = get(here, port)
	if err != nil || status != 200 || !answer.ServiceProxyHealthy || answer.Service.Namespace != "default" || header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v %+v %v", status, header, answer, err)
	}
}

// Other load balancers parse the bytes of the answer.
func TestAnswerIsThatOfKubernetes(t *testing.T) {
	w := newWorld(t, here)
	port := freePort(t, here)
	w.row("web", port, 3)
	w.expect(here, port, "web", 200, 3)
	r := must.Get(http.Get(fmt.Sprintf("http://%s:%d/", here, port)))(t)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	const want = `{"service":{"namespace":"default","name":"web"},"localEndpoints":3,"serviceProxyHealthy":true}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
	if r, err = http.Head(fmt.Sprintf("http://%s:%d/any/path", here, port)); err != nil || r.StatusCode != 200 {
		t.Errorf("HEAD: %v, %v", r, err)
	} else {
		r.Body.Close()
	}
}

func TestPortsComeAndGo(t *testing.T) {
	w := newWorld(t, here)
	a, b := freePort(t, here), freePort(t, here)
	w.row("web", a, 1)
	w.row("plain", 0, 1)
	w.expect(here, a, "web", 200, 1)
	w.row("web", b, 1) // another port
	w.expect(here, b, "web", 200, 1)
	w.expectClosed(here, a)
	w.row("db", a, 2)
	w.expect(here, a, "db", 200, 2)
	w.row("web", 0, 0) // no health port any more
	w.expectClosed(here, b)
	w.compiled.Delete(key("db"))
	w.expectClosed(here, a)
	expect.Empty(t, w.Problems(), "problems")
}

// A port that moves from one service to another at once never conflicts with itself.
func TestPortChangesHands(t *testing.T) {
	w := newWorld(t, here)
	port := freePort(t, here)
	for i := range 20 {
		from, to := fmt.Sprintf("s%d", i), fmt.Sprintf("s%d", i+1)
		w.row(from, port, 1)
		w.expect(here, port, from, 200, 1)
		w.compiled.Delete(key(from))
		w.row(to, port, 1)
		w.expect(here, port, to, 200, 1)
	}
	events, _ := w.Events.Since(0)
	expect.Empty(t, events, "events")
}

func TestFollowsTheHostsAddresses(t *testing.T) {
	const second = "127.88.0.2"
	w := newWorld(t)
	port := freePort(t, here)
	w.row("web", port, 1)
	w.expectClosed(here, port)
	w.addresses(here, second)
	w.expect(here, port, "web", 200, 1)
	w.expect(second, port, "web", 200, 1)
	w.addresses(second)
	w.expectClosed(here, port)
	w.expect(second, port, "web", 200, 1)
	w.host.Delete(struct{}{})
	w.expectClosed(second, port)
}

// Another program's listener is reported by name and left unchanged. When it closes, ours opens.
func TestTakenPort(t *testing.T) {
	w := newWorld(t, here)
	l := must.Get(net.Listen("tcp", net.JoinHostPort(here, "0")))(t)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	w.row("web", port, 1)
	w.until("the problem is reported", func() bool { return len(w.Problems()) == 1 }, nil)
	p := w.Problems()[0]
	if p.Code != vip.CodePortTaken || p.Service != "web" || p.Place != l.Addr().String() || p.Field != "health_check_node_port" ||
		!strings.Contains(p.Message, "address already in use") || !strings.Contains(p.Hint, fmt.Sprint(port)) {
		t.Errorf("problem %+v", p)
	}
	w.row("web", port, 2) // neither a retry nor another report
	l.Close()
	w.expect(here, port, "web", 200, 2)
	w.until("the problem is over", func() bool { return len(w.Problems()) == 0 }, nil)
	events, _ := w.Events.Since(0)
	if len(events) != 2 || events[0].Kind != "health_port_failed" || events[1].Kind != "health_port_open" || events[0].Service != "web" {
		t.Errorf("events %+v", events)
	}
}

// A problem ends with its address or service.
func TestProblemEndsWithItsCause(t *testing.T) {
	for name, end := range map[string]func(*world){
		"the service goes":    func(w *world) { w.compiled.Delete(key("web")) },
		"the address goes":    func(w *world) { w.addresses() },
		"another number":      func(w *world) { w.row("web", freePort(w.T, here), 1) },
		"no health port":      func(w *world) { w.row("web", 0, 0) },
		"the whole host goes": func(w *world) { w.host.Delete(struct{}{}) },
	} {
		t.Run(name, func(t *testing.T) {
			l := must.Get(net.Listen("tcp", net.JoinHostPort(here, "0")))(t)
			defer l.Close()
			w := newWorld(t, here)
			w.row("web", l.Addr().(*net.TCPAddr).AddrPort().Port(), 1)
			w.until("the problem is reported", func() bool { return len(w.Problems()) == 1 }, nil)
			end(w)
			w.until("the problem is over", func() bool { return len(w.Problems()) == 0 }, nil)
		})
	}
}

// A client between two servers waits for the next one, and for its dataplane. A port that the next
// one doesn't have is closed.
func TestNextServerAdopts(t *testing.T) {
	var first sockets.Set
	old := newWorldWith(t, Options{Sockets: &first}, here)
	number, other := freePort(t, here), freePort(t, here)
	old.row("web", number, 1)
	old.row("db", other, 1)
	old.expect(here, number, "web", http.StatusOK, 1)
	old.expect(here, other, "db", http.StatusOK, 1)
	second := inherit.From(t, &first)
	old.end()
	type result struct {
		status int
		err    error
	}
	answered := make(chan result, 1)
	ask := func() {
		status, _, _, err := get(here, number)
		answered <- result{status, err}
	}
	go ask()
	synced := make(chan struct{})
	now := newWorldWith(t, Options{Sockets: second, Synced: synced}, here)
	now.healthy.Store(false)
	now.row("web", number, 1)
	wait.Until(t, "the next server has the port", func() bool { return second.Unclaimed() == 1 }, func() any { return second.Unclaimed() })
	now.healthy.Store(true)
	close(synced)
	if r := <-answered; r.err != nil || r.status != http.StatusOK {
		t.Errorf("a client in between: %d, %v", r.status, r.err)
	}
	second.RemoveUnclaimed()
	now.expectClosed(here, other)
}

// When the server says that it has claimed its listeners, it has each one of a service that was compiled
// at the start, however late that was.
func TestClaimed(t *testing.T) {
	var first sockets.Set
	old := newWorldWith(t, Options{Sockets: &first}, here)
	ports := freeport.Reserve(t, nil, netip.MustParseAddr(here))
	services := len(ports) - 1
	for i := range services {
		old.row(fmt.Sprint("s", i), ports[1+i], 1)
		old.expect(here, ports[1+i], fmt.Sprint("s", i), http.StatusOK, 1)
	}
	second := inherit.From(t, &first)
	old.end()
	clock := table.NewClock(time.Now())
	w := &world{T: t, compiled: table.New(clock, pipeline.KeyOfCompiled, pipeline.SameCompiled), host: old.host}
	done := w.compiled.Initializer()
	s := New(Options{Compiled: w.compiled, Host: w.host, NodePorts: old.NodePorts, Healthy: old.healthy.Load, Sockets: second})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	w.row("s0", ports[1], 1)
	wait.Until(t, "one listener is claimed", func() bool { return second.Unclaimed() == services-1 })
	expect.False(t, table.IsClosed(s.Claimed()), "claimed before the services were compiled")
	for i := 1; i < services-1; i++ {
		w.row(fmt.Sprint("s", i), ports[1+i], 1)
	}
	done()
	<-s.Claimed()
	expect.Equal(t, second.Unclaimed(), 1, "listeners are unclaimed")
	second.RemoveUnclaimed()
	cancel()
	expect.Is(t, <-ended, context.Canceled, "Run")
}

// A dataplane that isn't programmed in time is answered as not healthy.
func TestWaitForTheDataplaneIsBounded(t *testing.T) {
	w := newWorldWith(t, Options{Synced: make(chan struct{})}, here)
	w.healthy.Store(false)
	number := freePort(t, here)
	w.row("web", number, 1)
	w.expect(here, number, "web", http.StatusServiceUnavailable, 1)
}

// A listener that breaks is a problem, and is opened again. A listener that was closed is no
// problem.
func TestBrokenListener(t *testing.T) {
	w := newWorld(t, here)
	w.end()
	s := New(w.Options)
	ctx, cancel := context.WithCancel(t.Context())
	s.tasks, s.ctx = parallel.NewGroup(ctx)
	defer s.tasks.Wait()
	defer cancel()
	s.addrs = []netip.Addr{netip.MustParseAddr(here)}
	number := freePort(t, here)
	s.set(key("web"), &pipeline.Compiled{HealthPort: number, LocalReady: 1})
	defer s.close(key("web"), s.Sockets.Remove)
	l := s.ports[key("web")].listeners[s.addrs[0]]
	at := s.ports[key("web")].place(s.addrs[0])

	s.lost(ending{at, nil, errors.New("of one before")})
	expect.Empty(t, s.Problems(), "problems")
	l.Close()
	d := <-s.ended
	s.lost(d)
	if p := s.Problems(); len(p) != 1 || p[0].Code != vip.CodeDataplane {
		t.Errorf("problems %v", p)
	}
	_, _, _, err := get(here, number)
	expect.True(t, err != nil, "still answers")
	s.retryAll()
	w.expect(here, number, "web", 200, 1)
	expect.Empty(t, s.Problems(), "problems")
}

// Clients beyond the limit are reset, and a client that leaves frees its slot.
func TestConnectionsAreBounded(t *testing.T) {
	w := newWorld(t, here)
	number := freePort(t, here)
	w.row("web", number, 1)
	w.expect(here, number, "web", 200, 1)
	at := net.JoinHostPort(here, fmt.Sprint(number))
	var open []net.Conn
	w.until("a client is refused", func() bool {
		for len(open) < 2*maxOfClient {
			c, err := net.DialTimeout("tcp", at, maxWait)
			if err != nil {
				return errors.Is(err, syscall.ECONNRESET)
			}
			t.Cleanup(func() { c.Close() })
			open = append(open, c)
		}
		_, _, _, err := get(here, number)
		return err != nil
	}, nil)
	all, _ := w.limit.Open()
	expect.AtMost(t, all, maxOfClient, "open connections")
	for _, c := range open {
		c.Close()
	}
	w.expect(here, number, "web", 200, 1)
}

// A client with many slow connections keeps no other client from an answer.
func TestSlowClientsKeepNoPort(t *testing.T) {
	w := newWorld(t, here)
	number := freePort(t, here)
	w.row("web", number, 1)
	w.expect(here, number, "web", 200, 1)
	at := net.JoinHostPort(here, fmt.Sprint(number))
	for range 2 * maxOfClient {
		if c, err := net.DialTimeout("tcp", at, maxWait); err == nil { // otherwise it is reset
			defer c.Close()
			c.Write([]byte("GET / HTTP/1.1\r\nX-Slow: "))
		}
	}
	from := http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext}
	defer from.CloseIdleConnections()
	r := must.Get((&http.Client{Transport: &from}).Get("http://" + at))(t)
	r.Body.Close()
	expect.Equal(t, r.StatusCode, 200)
}

// A client that sends nothing, or never ends its request, is disconnected.
// Slow: a client has 2 s for its request.
func TestSlowClientsAreCutOff(t *testing.T) {
	w := newWorld(t, here)
	number := freePort(t, here)
	w.row("web", number, 1)
	w.expect(here, number, "web", 200, 1)
	open := map[string]net.Conn{}
	for _, text := range []string{"", "GET / HTTP/1.1\r\nHost: x\r\n", "GET / HTTP/1.1\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 20)} {
		c := must.Get(net.DialTimeout("tcp", net.JoinHostPort(here, fmt.Sprint(number)), maxWait))(t)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(maxWait))
		must.Get(io.WriteString(c, text))(t)
		open[text] = c
	}
	for text, c := range open {
		_, err := io.Copy(io.Discard, c)
		expect.False(t, isTimeout(err), "after %.20q: still open", text)
	}
	w.until("their places are free", func() bool { all, _ := w.limit.Open(); return all == 0 }, nil)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// The end closes everything, and waits for it.
func TestEnd(t *testing.T) {
	w := newWorld(t, here)
	number := freePort(t, here)
	w.row("web", number, 1)
	w.expect(here, number, "web", 200, 1)
	idle := must.Get(net.Dial("tcp", net.JoinHostPort(here, fmt.Sprint(number))))(t)
	defer idle.Close()
	expect.Is(t, w.end(), context.Canceled, "Run ended with")
	_, _, _, err := get(here, number)
	expect.True(t, err != nil, "still answers")
	all, _ := w.limit.Open()
	expect.Equal(t, all, 0, "connections are open")
}

// The cost of a change of one row doesn't grow with the number of rows.
func TestChangeCostDoesNotGrow(t *testing.T) {
	cost := func(n int) float64 {
		s := New(Options{})
		for i := range n {
			s.set(key(fmt.Sprintf("s%d", i)), &pipeline.Compiled{HealthPort: uint16(1 + i), LocalReady: 1})
		}
		row := pipeline.Compiled{HealthPort: 1}
		return testing.AllocsPerRun(50, func() {
			row.LocalReady++
			s.moves(key("s0"), row.HealthPort)
			s.set(key("s0"), &row)
		})
	}
	if few, many := cost(10), cost(5000); many > few {
		t.Errorf("%v allocations among 10 services, %v among 5,000", few, many)
	}
}
