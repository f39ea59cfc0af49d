// Package remote is the userspace dataplane as an agent has it: a reconcile.Plane whose frontends are served by a Server of
// proxy/process, in a process of its own or in this one.
//
// Client asks the server, and has what it reports. Package plane/kernel/vips adds what only the agent has the rights for: the
// addresses of VIPs.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/vip"
)

// ClientOptions are the settings of a Client.
type ClientOptions struct {
	Socket   string                                  // of the process
	Dial     func(context.Context) (net.Conn, error) // connects instead, with a server of this process; nil: Socket is used
	Name     string                                  // tells agents apart: the state directory
	Settings process.Settings

	Host    table.Reader[struct{}, hostnet.Snapshot]
	Passive *table.Table[vip.PassiveKey, vip.PassiveHealth] // the Client is its only writer; nil: not needed
	Events  *event.Log
	Log     *slog.Logger
}

// Client is a proxy in another process: listeners without the addresses. One goroutine at a time calls Apply and Actual. The
// other methods may be called concurrently.
type Client struct {
	reconcile.Tidy

	settings  process.Settings
	link      mirror.Client
	changed   wake.Signal // has room for one; see Changed
	events    *event.Log
	lastEvent uint64 // ID of the last one of the process

	mu         sync.Mutex // not held while the process is asked
	connected  bool       // since the last Check
	run        int64      // of the process; 0: unknown
	configured bool       // this run has the settings
	uses       process.Configured
	known      map[vip.FrontendKey]*vip.Frontend // what this run has, after a number of changes; nil: unknown
	changes    uint64                            // this number; 0: unknown

	reporting sync.Mutex // of what follows, and held while the process is asked
	report    process.Report
	reported  time.Time
}

var _ reconcile.Plane = (*Client)(nil)

// NewClient returns a Client that connects once it runs.
func NewClient(o ClientOptions) *Client {
	c := &Client{settings: o.Settings, events: o.Events, changed: wake.New()}
	mirrored := []mirror.Mirrored{
		mirror.IntoOne(process.TableRun, c.begin),
		mirror.IntoFunc[uint64](process.TableEvents, c.addEvents),
	}
	if o.Passive != nil {
		mirrored = append(mirrored, mirror.Into(process.TablePassive, o.Passive))
	}
	c.link = mirror.Client{Path: o.Socket, Dial: o.Dial, Server: "proxy", Name: o.Name, Mirror: mirrored,
		Publish: []mirror.Published{mirror.Publish(process.TableHost, o.Host)}, Log: cmp.Or(o.Log, slog.New(slog.DiscardHandler))}
	return c
}

// Run keeps the connection until the context ends, and returns its error.
func (c *Client) Run(ctx context.Context) error { return c.link.Run(ctx) }

// State returns the state of the connection.
func (c *Client) State() mirror.State { return c.link.State() }

// Changed implements reconcile.Target. It delivers after each connection: the process may be another one, without its
// frontends.
func (c *Client) Changed() <-chan struct{} { return c.changed }

// Check implements reconcile.Target.
func (c *Client) Check(context.Context) (found reconcile.Drift[vip.FrontendKey, vip.Frontend], err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found.Unknown, c.connected = c.connected, false
	return found, nil
}

// begin takes in which run of the process this is, at the beginning of a connection.
func (c *Client) begin(r *process.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = true
	c.changed.Set()
	if c.run == r.Began {
		return
	}
	c.run, c.configured = r.Began, false
	c.known, c.changes = nil, 0
}

// configure sends the settings, if this run of the process hasn't got them.
func (c *Client) configure(ctx context.Context) error {
	c.mu.Lock()
	run, done := c.run, c.configured
	c.mu.Unlock()
	if done {
		return nil
	}
	got, err := mirror.Ask[process.Settings, process.Configured](ctx, &c.link, process.AskConfigure, c.settings)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses, c.configured = got, c.run == run && run != 0
	return nil
}

// Entrance says how clients reach the proxy, once that is known.
func (c *Client) Entrance() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.configured:
		return ""
	case c.uses.Settings != c.settings:
		return c.uses.Entrance.String() + "; dataplane.sk_lookup was changed: restart the process of the proxy"
	}
	return c.uses.Entrance.String()
}

// changeTime bounds a change and a read of the frontends. A process that takes longer hangs.
const changeTime = 20 * time.Second

var errNoAnswer = fmt.Errorf("the proxy has not answered within %s", changeTime)

// Apply implements reconcile.Target.
func (c *Client) Apply(ctx context.Context, batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) error {
	if err := c.configure(ctx); err != nil {
		return err
	}
	updates := make([]process.Update, len(batch))
	for i, u := range batch {
		updates[i] = process.Update{Key: u.Key, New: u.New}
	}
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	results, err := mirror.Ask[[]process.Update, []process.Result](ctx, &c.link, process.AskApply, updates)
	if err == nil && len(results) != len(batch) {
		err = errors.New("the proxy has answered for another number of frontends")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.known, c.changes = nil, 0
		return err
	}
	for i := range batch {
		batch[i].Err = results[i].Err()
	}
	if c.known == nil {
		return nil
	}
	c.changes += uint64(len(batch))
	for i := range batch {
		if p, is := errors.AsType[vip.Problem](batch[i].Err); is && p.Code == vip.CodeUnsupported {
			continue // refused before any change
		}
		if batch[i].New == nil || batch[i].Err != nil { // with another error, it is tried again, whatever the process has
			delete(c.known, batch[i].Key)
		} else {
			c.known[batch[i].Key] = batch[i].New
		}
	}
	return nil
}

// Actual implements reconcile.Target. The process sends its frontends only if they are not those that this agent has made,
// because nobody else changes them.
func (c *Client) Actual(ctx context.Context) iter.Seq2[reconcile.Observed[vip.Frontend], error] {
	return func(yield func(reconcile.Observed[vip.Frontend], error) bool) {
		all, damaged, err := c.actual(ctx)
		if err != nil {
			yield(reconcile.Observed[vip.Frontend]{}, err)
			return
		}
		for key, f := range all {
			if !yield(reconcile.Observed[vip.Frontend]{Value: *f, Damage: damaged[key]}, nil) {
				return
			}
		}
	}
}

// actual returns the frontends of the process, and which of them are damaged.
func (c *Client) actual(ctx context.Context) (all map[vip.FrontendKey]*vip.Frontend, damaged map[vip.FrontendKey][]string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, changeTime, errNoAnswer)
	defer cancel()
	defer func() {
		if err != nil && context.Cause(ctx) == errNoAnswer {
			err = errNoAnswer
		}
	}()
	if err := c.configure(ctx); err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	known, changes, run := c.known, c.changes, c.run
	c.mu.Unlock()
	got, err := mirror.Ask[uint64, process.Actual](ctx, &c.link, process.AskActual, changes)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case got.Changes != changes:
		known = make(map[vip.FrontendKey]*vip.Frontend, len(got.All))
		for i := range got.All {
			known[got.All[i].Key] = &got.All[i]
		}
		if c.run == run { // else another process has begun meanwhile
			c.known, c.changes = known, got.Changes
		}
	case c.run != run:
		return nil, nil, errors.New("the process of the proxy was replaced during the read")
	}
	return known, got.Damaged, nil
}

// Ignored implements reconcile.Plane.
func (c *Client) Ignored(*vip.Service) []vip.Problem { return nil }

// Same implements reconcile.Target.
func (c *Client) Same(a, b *vip.Frontend) bool { return proxy.Same(a, b) }

// ask asks without an argument.
func ask[A any](ctx context.Context, c *Client, name string) (A, error) {
	return mirror.Ask[bool, A](ctx, &c.link, name, true)
}

// Connections implements reconcile.Connections.
func (c *Client) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	return mirror.Ask[vip.FrontendKey, map[netip.AddrPort]int](ctx, &c.link, process.AskConnections, key)
}

// listedAtOnce is how many frontends have their connections listed in one answer.
const listedAtOnce = 16

// ListConnections implements reconcile.ConnectionLister.
func (c *Client) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	keys, err := c.Keys(ctx)
	if err != nil {
		return err
	}
	keys = slices.DeleteFunc(keys, func(k vip.FrontendKey) bool { return !want(k) })
	for some := range slices.Chunk(keys, listedAtOnce) {
		list, err := mirror.Ask[[]vip.FrontendKey, []reconcile.Connection](ctx, &c.link, process.AskList, some)
		if err != nil {
			return err
		}
		for _, one := range list {
			if !yield(one) {
				return nil
			}
		}
	}
	return nil
}

// Counted implements reconcile.Statistics. The proxy counts no packets, which only the kernel sees,
// and no rates. It has no inactive connections.
func (c *Client) Counted() reconcile.Counted { return reconcile.Counted{Audiences: true} }

// Totals implements reconcile.Statistics. It costs O(frontends and endpoints).
func (c *Client) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	all, err := ask[map[vip.FrontendKey]reconcile.Traffic](ctx, c, process.AskTotals)
	for key := range all {
		if !want(key) {
			delete(all, key)
		}
	}
	return all, err
}

// Breakdown implements reconcile.Statistics.
func (c *Client) Breakdown(ctx context.Context, key vip.FrontendKey) (reconcile.Breakdown, bool, error) {
	b, err := mirror.Ask[vip.FrontendKey, process.Breakdown](ctx, &c.link, process.AskBreakdown, key)
	return b.Breakdown, b.Found, err
}

// Retire makes the proxy end all its frontends, and lets their open connections go on for some time.
func (c *Client) Retire(ctx context.Context, within time.Duration) error {
	_, err := mirror.Ask[time.Duration, bool](ctx, &c.link, process.AskRetire, within)
	return err
}

// Keys returns the frontends that the proxy has.
func (c *Client) Keys(ctx context.Context) ([]vip.FrontendKey, error) {
	return ask[[]vip.FrontendKey](ctx, c, process.AskKeys)
}

// Ask returns the state of the proxy. It costs O(services and backends).
func (c *Client) Ask(ctx context.Context) (process.Report, error) {
	return ask[process.Report](ctx, c, process.AskReport)
}

// Reading the report of the proxy.
const (
	reportAge  = time.Second     // of one that serves more than one reader
	reportWait = 2 * time.Second // for the answer
)

// Report returns the state of the proxy, which is at most a second old, or the last known one while the proxy can't be
// asked. It costs O(services and backends) each second that somebody asks.
func (c *Client) Report() process.Report {
	c.reporting.Lock()
	defer c.reporting.Unlock()
	if time.Since(c.reported) < reportAge {
		return c.report
	}
	ctx, cancel := context.WithTimeout(context.Background(), reportWait)
	defer cancel()
	if r, err := c.Ask(ctx); err == nil {
		c.report = r
	}
	c.reported = time.Now()
	return c.report
}

// addEvents adds the events of the process, each once.
func (c *Client) addEvents(rows []event.Event) {
	for _, e := range rows {
		if e.ID > c.lastEvent {
			c.lastEvent = e.ID
			c.events.Add(e)
		}
	}
}
