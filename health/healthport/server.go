package healthport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/httpstop"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/vip"
)

// Bounds of what clients may use.
const (
	requestTime    = 2 * time.Second // from the connection to the end of the answer, in each direction
	startTime      = time.Second     // for answers before the dataplane has been programmed
	shutdownTime   = time.Second     // for answers under way when a port closes
	maxHeader      = 4 << 10         // bytes
	maxConnections = 1024            // open at once on all ports together
	maxOfClient    = 256             // of one client
)

// Bounds of the waits before a retry to listen.
const (
	minRetry = 200 * time.Millisecond
	maxRetry = 30 * time.Second
)

// Options are what a Server needs. Compiled, Host and Healthy are required.
type Options struct {
	Compiled  table.Reader[vip.ServiceKey, pipeline.Compiled]
	Host      table.Reader[struct{}, hostnet.Snapshot]
	NodePorts []netip.Prefix // where node ports are served; empty: on the primary addresses
	// Healthy reports whether the dataplane matches the tables. It is called for each answer.
	Healthy func() bool
	// Synced is closed when Healthy can be true for the first time. Clients wait for it for up to
	// startTime: those that connect while a process replaces another one. Nil: they don't wait.
	Synced  <-chan struct{}
	Sockets *sockets.Set // opens the listeners; nil: a set that has inherited none
	Events  *event.Log
	Log     *slog.Logger
}

// Server listens and answers. Create it with New, and call Run in a goroutine.
type Server struct {
	Options
	limit   *connlimit.Limit
	claimed chan struct{} // see Claimed

	// Used only by Run.
	ctx     context.Context
	addrs   []netip.Addr // to listen on
	ports   map[vip.ServiceKey]*port
	retry   *time.Timer // for the places at which listening failed
	backoff backoff.Backoff
	ended   chan ending
	tasks   parallel.Group // every goroutine

	mu       sync.Mutex
	failures map[place]vip.Problem // by the place at which listening failed; only Run writes
}

// place is the address at which a service's port listens.
type place struct {
	service vip.ServiceKey
	at      netip.AddrPort
}

// port is one service's health port.
type port struct {
	service   vip.ServiceKey
	number    uint16
	ready     atomic.Int64
	server    *Server
	http      *http.Server
	conns     httpstop.Conns // of http
	listeners map[netip.Addr]*net.TCPListener
}

// ending is a listener that ended by itself.
type ending struct {
	place
	listener *net.TCPListener
	err      error
}

// New returns a Server that does nothing until Run.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Sockets == nil {
		o.Sockets = &sockets.Set{}
	}
	s := &Server{
		Options: o, limit: &connlimit.Limit{Most: maxConnections, Each: maxOfClient}, claimed: make(chan struct{}),
		ports: make(map[vip.ServiceKey]*port), failures: make(map[place]vip.Problem), backoff: backoff.Backoff{Lo: minRetry, Hi: maxRetry},
		retry: time.NewTimer(time.Hour), ended: make(chan ending),
	}
	s.retry.Stop()
	return s
}

// Problems returns where listening fails at present, by service and address.
func (s *Server) Problems() []vip.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.failures), func(a, b vip.Problem) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Place, b.Place))
	})
}

// Claimed is closed when Run has listened, or failed to, on each port of the services that were compiled
// at the start. It has then claimed the listeners that the last process left. Stage compile knows the
// host's addresses before, or no longer waits for them.
func (s *Server) Claimed() <-chan struct{} { return s.claimed }

// Run answers until the context ends and returns its error. When it returns, every listener is closed
// in this process, and every connection has ended. Clients wait for another process that has the
// listeners.
func (s *Server) Run(ctx context.Context) error {
	s.tasks, s.ctx = parallel.NewGroup(ctx)
	s.tasks.Run(s.ctx, s.loop)
	return cmp.Or(s.tasks.Wait(), ctx.Err())
}

func (s *Server) loop(ctx context.Context) {
	defer func() {
		for k := range s.ports {
			s.close(k, s.Sockets.Release)
		}
		s.retry.Stop()
	}()
	rows := s.Compiled.Watch()
	defer rows.Close()
	host := s.Host.Watch()
	defer host.Close()
	ready := s.Compiled.Ready()
	for ctx.Err() == nil {
		complete := table.IsClosed(ready) // before reading rows: those that it delivers now are all
		snapshots, hostChanged := host.TryNext()
		if n := len(snapshots); n > 0 {
			var snapshot hostnet.Snapshot
			if last := &snapshots[n-1]; !last.Deleted {
				snapshot = last.Value
			}
			s.follow(snapshot)
		}
		batch, rowsChanged := rows.TryNext()
		// Deletions first: another service may have their ports now.
		for i := range batch {
			c := &batch[i]
			if k := c.Value.Service.Key; c.Deleted || s.moves(k, c.Value.HealthPort) {
				s.close(k, s.Sockets.Remove)
			}
		}
		for i := range batch {
			if c := &batch[i]; !c.Deleted && c.Value.HealthPort != 0 {
				s.set(c.Value.Service.Key, &c.Value)
			}
		}
		if len(batch)+len(snapshots) > 0 {
			continue
		}
		if complete {
			close(s.claimed)
			ready = nil // a nil channel is not closed
		}
		select {
		case <-ctx.Done():
		case <-ready:
		case <-hostChanged:
		case <-rowsChanged:
		case <-s.retry.C:
			s.retryAll()
		case d := <-s.ended:
			s.lost(d)
		}
	}
}

// follow listens on the present addresses of the host.
func (s *Server) follow(snapshot hostnet.Snapshot) {
	addrs := pipeline.NodePortAddrs(snapshot, s.NodePorts)
	if slices.Equal(addrs, s.addrs) {
		return
	}
	s.addrs = addrs
	for _, p := range s.ports {
		s.listen(p)
	}
}

// moves reports whether a service has a port that is not number.
func (s *Server) moves(k vip.ServiceKey, number uint16) bool {
	p := s.ports[k]
	return p != nil && p.number != number
}

// set updates a service's answer to the row.
func (s *Server) set(k vip.ServiceKey, row *pipeline.Compiled) {
	p := s.ports[k]
	if p != nil {
		p.ready.Store(int64(row.LocalReady))
		return
	}
	p = &port{service: k, number: row.HealthPort, server: s, listeners: make(map[netip.Addr]*net.TCPListener)}
	p.ready.Store(int64(row.LocalReady))
	p.http = &http.Server{
		Handler:           p,
		ReadHeaderTimeout: requestTime, ReadTimeout: requestTime, WriteTimeout: requestTime,
		MaxHeaderBytes: maxHeader, ConnState: p.conns.Track, ConnContext: withConnection,
		ErrorLog: log.New(io.Discard, "", 0), // errors of clients are not logged
	}
	p.http.SetKeepAlivesEnabled(false) // a check is one request; an idle connection would occupy a slot
	s.ports[k] = p
	s.listen(p)
}

// close closes a service's port, if it has one, and its listeners with end. Requests in progress are
// answered.
func (s *Server) close(k vip.ServiceKey, end func(sockets.Socket)) {
	p := s.ports[k]
	if p == nil {
		return
	}
	delete(s.ports, k)
	for addr, l := range p.listeners {
		delete(p.listeners, addr)
		end(l)
	}
	s.forget(func(at place) bool { return at.service == k })
	s.tasks.Go(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
		defer cancel()
		p.conns.Stop(ctx, p.http)
		return nil
	})
}

// listen opens and closes a port's listeners to match the addresses.
func (s *Server) listen(p *port) {
	for addr, l := range p.listeners {
		if !slices.Contains(s.addrs, addr) {
			delete(p.listeners, addr)
			s.Sockets.Remove(l)
		}
	}
	s.forget(func(at place) bool { return at.service == p.service && !slices.Contains(s.addrs, at.at.Addr()) })
	for _, addr := range s.addrs {
		if _, fails := s.failures[p.place(addr)]; p.listeners[addr] == nil && !fails {
			s.open(p, addr)
		}
	}
}

func (p *port) place(addr netip.Addr) place {
	return place{p.service, netip.AddrPortFrom(addr, p.number)}
}

// open listens on one address, or records the failure.
func (s *Server) open(p *port, addr netip.Addr) {
	at := p.place(addr)
	l, err := s.Sockets.ListenTCP(s.ctx, at.at)
	if err != nil {
		s.fail(at, err)
		return
	}
	if _, failed := s.failures[at]; failed {
		s.forget(func(other place) bool { return other == at })
		s.Log.Info("health port is answered again", "service", at.service, "at", at.at)
		s.Events.Add(event.Event{Kind: "health_port_open", Service: at.service.String(), Object: at.at.String(), Message: "answered again"})
	}
	p.listeners[addr] = l
	s.tasks.Go(func() error {
		err := p.http.Serve(s.limit.Listener(l))
		select {
		case s.ended <- ending{at, l, err}:
		case <-s.ctx.Done():
		}
		return nil
	})
}

// lost records the end of a listener, unless it was requested.
func (s *Server) lost(d ending) {
	p := s.ports[d.service]
	if p == nil || p.listeners[d.at.Addr()] != d.listener {
		return
	}
	s.Sockets.Remove(d.listener)
	delete(p.listeners, d.at.Addr())
	s.fail(d.place, d.err)
}

// fail reports a place at which listening fails, once, and schedules the next try.
func (s *Server) fail(at place, err error) {
	if _, known := s.failures[at]; !known {
		s.Log.Error("health port can't be answered; balancers take this node for one without backends", "service", at.service, "at", at.at, "err", err)
		s.Events.Add(event.Event{Kind: "health_port_failed", Service: at.service.String(), Object: at.at.String(), Message: err.Error()})
		s.backoff.Reset()
		s.retry.Reset(s.backoff.Next())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[at] = problem(at, err)
}

func problem(at place, err error) vip.Problem {
	p := vip.Problem{
		Code: vip.CodeDataplane, Service: at.service.String(), Place: at.at.String(), Field: "health_check_node_port",
		Message: fmt.Sprintf("health checks can't be answered: %v", err),
	}
	if errors.Is(err, unix.EADDRINUSE) {
		p.Code = vip.CodePortTaken
		p.Hint = fmt.Sprintf("find who listens there (ss -ltnp 'sport = :%d'), or choose another health_check_node_port", at.at.Port())
	}
	return p
}

// retryAll tries again at the places at which listening failed.
func (s *Server) retryAll() {
	for _, at := range slices.Collect(maps.Keys(s.failures)) {
		s.open(s.ports[at.service], at.at.Addr())
	}
	if len(s.failures) > 0 {
		s.retry.Reset(s.backoff.Next())
	}
}

// forget drops failures of places that are no longer wanted or that work.
func (s *Server) forget(which func(place) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.failures, func(at place, _ vip.Problem) bool { return which(at) })
}
