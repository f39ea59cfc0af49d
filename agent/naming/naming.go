// Package naming is the agent's part of DNS: it connects the names of services, the server that
// answers queries for them, and the host's resolver, as the configuration says.
//
// Its inputs are the configuration and the tables of the pipeline. Its outputs are answers to
// clients, lines of `ironvip status`, events and metrics. It decides nothing about names: package
// dns/zone does. No fault here affects traffic or ends the agent.
package naming

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/dns"
	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/dns/server"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Options are what the package needs. All are required.
type Options struct {
	Config      func() *configs.Config // in effect; see Reload
	Services    table.Reader[vip.ServiceKey, vip.Service]
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
	Leases      table.Reader[ipam.Resource, *ipam.Lease]
	Store       dns.ContestedStore // of this host
	Host        table.Reader[struct{}, hostnet.Snapshot]
	Sockets     *sockets.Set // opens the listeners, and passes them on to the next process
	Clock       *table.Clock
	Events      *event.Log
	Log         *slog.Logger
}

// Naming connects the parts. Create it with New and start Run.
type Naming struct {
	Options
	Stage *dns.Stage

	server    *server.Server
	resolver  *resolved.Follower
	durations *metric.Durations
	reload    wake.Signal   // holds at most one
	claimed   chan struct{} // see Claimed
	zone      zone.Settings // that the stage has
}

// New creates the parts. They do nothing until Run.
func New(o Options) (*Naming, error) {
	settings := zoneSettings(o.Config())
	stage, err := dns.New(dns.Options{Settings: settings, Clock: o.Clock, Services: o.Services, Allocations: o.Allocations, Leases: o.Leases, Store: o.Store, Log: o.Log})
	if err != nil {
		return nil, err
	}
	n := &Naming{Options: o, Stage: stage, zone: settings, reload: wake.New(), claimed: make(chan struct{}), resolver: resolved.New(resolved.Options{Log: o.Log}), durations: newDurations()}
	n.server = server.New(server.Options{Settings: serverSettings(o.Config()), Answerer: stage, Sockets: o.Sockets, HasAddr: n.hasAddr, Moved: o.Host.Changed, Took: func(d time.Duration) { n.durations.Observe(d) }, Events: o.Events, Log: o.Log})
	return n, nil
}

// hasAddr reports whether this host has an address. It is true as long as the host's network is unknown.
func (n *Naming) hasAddr(a netip.Addr) bool {
	s, _, known := n.Host.Get(struct{}{})
	return !known || s.HasAddr(a)
}

// Zone returns the domain and the configured addresses.
func (n *Naming) Zone() (domain string, listen []netip.AddrPort) {
	cfg := n.Config()
	return cfg.DNS.Domain, cfg.DNS.Addresses()
}

// Reload applies a changed configuration.
func (n *Naming) Reload() {
	n.reload.Set()
}

// Run runs the parts until the context ends, and returns its error. Without an address to listen at,
// there are no names, so that they take no memory; once there was one, they are kept.
func (n *Naming) Run(ctx context.Context) error {
	group, ctx := parallel.NewGroup(ctx)
	n.resolver.Configure(n.Config().ResolvedSettings())
	group.Go(func() error { return n.resolver.Run(ctx) })
	group.Go(func() error {
		if n.Config().DNS.On() {
			group.Go(func() error {
				err := wake.Wait(ctx, n.server.Tried())
				if err == nil {
					close(n.claimed)
				}
				return err
			})
		} else {
			close(n.claimed)
		}
		for !n.Config().DNS.On() { // no address to listen at
			if err := wake.Wait(ctx, n.reload); err != nil {
				return err
			}
		}
		n.apply()
		group.Go(func() error { return n.Stage.Run(ctx) })
		group.Go(func() error { return n.serve(ctx) })
		group.Go(func() error { return n.followConflicts(ctx) })
		for {
			if err := wake.Wait(ctx, n.reload); err != nil {
				return err
			}
			n.apply()
		}
	})
	return group.Wait()
}

// Claimed is closed when Run has claimed the sockets that the last process left, as far as the
// configuration has their addresses. Without addresses, that is at once.
func (n *Naming) Claimed() <-chan struct{} { return n.claimed }

// serve answers queries once the names of the last run are known. Until then, clients wait at sockets
// that the last process left, or find none.
func (n *Naming) serve(ctx context.Context) error {
	if err := wake.Wait(ctx, n.Stage.Loaded()); err != nil {
		return err
	}
	return n.server.Run(ctx)
}

// apply gives the parts the settings of the configuration. Queries are answered meanwhile.
func (n *Naming) apply() {
	cfg := n.Config()
	if settings := zoneSettings(cfg); !reflect.DeepEqual(settings, n.zone) { // a new zone costs O(services)
		if err := n.Stage.Reconfigure(settings); err != nil { // the configuration was validated
			n.Log.Error("settings of DNS names refused; the former ones stay in effect", "err", err)
			return
		}
		n.zone = settings
	}
	n.server.Reconfigure(serverSettings(cfg))
	n.resolver.Configure(cfg.ResolvedSettings())
}
