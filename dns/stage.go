// Package dns follows services and what they were granted, and keeps the zone of their names.
//
// Its inputs are the tables [services] and [allocations], and [leases] until every source has listed
// its services, so that the names of the last run are answered from the start. Its outputs are the
// answers of the zone (package dns/zone) and the table [name conflicts]: the claims of names that
// another service has. It also stores who has contested names, for the next start. It owns the zone. It
// opens no sockets; package dns/server does. It decides nothing: the zone decides who has a contested
// name.
package dns

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Options are what a Stage needs. The tables and Clock are required.
type Options struct {
	Settings    zone.Settings
	Clock       *table.Clock // of the table of conflicts
	Services    table.Reader[vip.ServiceKey, vip.Service]
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
	Leases      table.Reader[ipam.Resource, *ipam.Lease]
	Store       ContestedStore // nil: after a restart, a contested name is answered by what is known
	Log         *slog.Logger   // nil: discards
}

// Stage keeps the zone. Create one with New, and call Run in a goroutine. It answers from the start,
// unknown names with SERVFAIL.
type Stage struct {
	Options
	zone      atomic.Pointer[zone.Zone]
	conflicts *table.Table[zone.ConflictKey, zone.Conflict]
	contested *table.Table[string, contested] // also without a server
	loaded    chan struct{}                   // closed when the zone has what the tables had at the start
	synced    chan struct{}                   // closed when unknown names don't exist

	mu      sync.Mutex                // of everything below, between Run and Reconfigure
	leased  *leased                   // nil when the allocations are complete
	held    map[string]vip.ServiceKey // who had contested names in the last run; nil when listed
	listed  bool                      // every source has listed its services, and they are in the zone
	serial  uint32
	applied int // changes that were given to the zone, for tests
	renamed []func(vip.ServiceKey)
}

// chunk is how many changes the zone gets at once when nothing asks for more: queries wait for them,
// for less than a millisecond.
const chunk = 512

// New returns a stage that knows no service before Run. The error says what is wrong with the
// settings.
func New(o Options) (*Stage, error) {
	z, err := zone.New(o.Settings)
	if err != nil {
		return nil, err
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	s := &Stage{
		Options: o, loaded: make(chan struct{}), synced: make(chan struct{}), leased: newLeased(),
		conflicts: table.New(o.Clock, zone.KeyOfConflict, func(a, b zone.Conflict) bool { return a == b }),
		contested: table.New(o.Clock, keyOfContested, func(a, b contested) bool { return a == b }),
	}
	s.zone.Store(z)
	return s, nil
}

// Conflicts returns the table of claims of names that the service doesn't have.
func (s *Stage) Conflicts() table.Reader[zone.ConflictKey, zone.Conflict] { return s.conflicts }

// TrackNames calls f with each service after its names have changed, apart from changes that the table of
// conflicts has. f must be quick, and must not call the stage.
func (s *Stage) TrackNames(f func(vip.ServiceKey)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renamed = append(s.renamed, f)
}

// Loaded is closed when the zone has the services and leases that were in the tables when Run began:
// the names of the last run are answered.
func (s *Stage) Loaded() <-chan struct{} { return s.loaded }

// Synced is closed when every source has listed its services, or is no longer waited for: unknown
// names are then answered as such.
func (s *Stage) Synced() <-chan struct{} { return s.synced }

// Answer returns the reply to a query. See zone.Answer.
func (s *Stage) Answer(query []byte, tcp bool) ([]byte, zone.Outcome) {
	return s.zone.Load().Answer(query, tcp)
}

// Explain answers a question and says why. See zone.Explain.
func (s *Stage) Explain(name string, t uint16) (zone.Explanation, error) {
	return s.zone.Load().Explain(name, t)
}

// NamesOf returns the names that a service has and claims. See zone.NamesOf. It calls a name lost, or
// undecided, only if the table of conflicts has it: without a server, no name is lost.
func (s *Stage) NamesOf(k vip.ServiceKey) []zone.Name {
	names := s.zone.Load().NamesOf(k)
	for i := range names {
		n := &names[i]
		if n.Lost && s.conflicts.Row(zone.ConflictKey{Name: n.Name, Service: k}) == nil {
			n.Lost, n.Winner, n.Undecided = false, vip.ServiceKey{}, false
		}
	}
	return names
}

// Names yields the names of all services, in no particular order. Names that are known only from
// leases are not among them.
func (s *Stage) Names() iter.Seq[zone.Name] {
	return func(yield func(zone.Name) bool) {
		for k := range s.Services.All() {
			for _, n := range s.NamesOf(k) {
				if !yield(n) {
					return
				}
			}
		}
	}
}

// Len returns the number of names that have a service. Names of ports and addresses count, too.
func (s *Stage) Len() int { return s.zone.Load().Len() }

// Run keeps the zone until the context ends, and returns its error.
func (s *Stage) Run(ctx context.Context) error {
	running, ctx := parallel.NewGroup(ctx)
	if s.Store != nil {
		stored := restore(s.Store, s.Log)
		s.hold(stored)
		names := maps.Clone(stored)
		running.Run(ctx, func(ctx context.Context) { s.keep(ctx, names) })
	}
	running.Go(func() error { return s.loop(ctx) })
	return running.Wait()
}

func (s *Stage) loop(ctx context.Context) error {
	services := s.Services.Watch()
	defer services.Close()
	allocations := s.Allocations.Watch()
	defer allocations.Close()
	leases := s.Leases.Watch()
	defer func() { leases.Close() }()
	loading := true
	for ctx.Err() == nil {
		// Before reading the feeds: what they deliver now is then complete.
		ready, granted := s.Services.Ready(), s.Allocations.Ready()
		listed, complete := table.IsClosed(ready), table.IsClosed(granted)

		leaseBatch, leasesChanged := leases.TryNext()
		serviceBatch, servicesChanged := services.TryNext()
		allocationBatch, allocationsChanged := allocations.TryNext()
		if s.step(leaseBatch, serviceBatch, allocationBatch) {
			continue
		}
		if loading {
			close(s.loaded)
			loading = false
		}
		if listed && s.finish(complete) {
			continue
		}
		if listed {
			ready = nil
		}
		if complete {
			granted = nil
			leases.Close()
			leasesChanged = nil
		}
		select {
		case <-ctx.Done():
		case <-servicesChanged:
		case <-allocationsChanged:
		case <-leasesChanged:
		case <-ready:
		case <-granted:
		}
	}
	return ctx.Err()
}

// hold states who had contested names in the last run.
func (s *Stage) hold(winners map[string]vip.ServiceKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = winners
	s.report(s.zone.Load().Hold(winners))
}

type (
	leaseChange      = table.Change[*ipam.Lease]
	serviceChange    = table.Change[vip.Service]
	allocationChange = table.Change[vip.Allocation]
)

// step updates the names of the services that a batch concerns, and reports whether there are any.
func (s *Stage) step(leases []leaseChange, services []serviceChange, allocations []allocationChange) bool {
	if len(leases)+len(services)+len(allocations) == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	touched := make(map[vip.ServiceKey]bool)
	if s.leased != nil {
		for i := range leases {
			s.leased.set(leases[i].Value, leases[i].Deleted, touched)
		}
	}
	for i := range services {
		touched[services[i].Value.Key] = true
	}
	for i := range allocations {
		if asked := allocations[i].Value.Asked; asked != nil {
			touched[asked.Key] = true
		}
	}
	s.apply(s.changes(touched))
	return true
}

// changes returns what the zone should know of services.
func (s *Stage) changes(of map[vip.ServiceKey]bool) []zone.Change {
	changes := make([]zone.Change, 0, len(of))
	for k := range of {
		changes = append(changes, s.change(k))
	}
	// Names don't depend on the order. It is the same for equal changes, so that tests can rely on it.
	slices.SortFunc(changes, func(a, b zone.Change) int { return a.Key.Compare(b.Key) })
	return changes
}

// apply writes changes to the zone, all at once.
func (s *Stage) apply(changes []zone.Change) {
	s.applied += len(changes)
	var renamed []vip.ServiceKey
	if z := s.zone.Load(); len(s.renamed) > 0 {
		for i := range changes {
			if former, known := z.Hostnames(changes[i].Key); !known || !slices.Equal(former, changes[i].Hostnames) {
				renamed = append(renamed, changes[i].Key)
			}
		}
	}
	s.report(s.zone.Load().Apply(s.nextSerial(), changes))
	for _, k := range renamed {
		s.rename(k)
	}
}

// rename tells the trackers that the names of a service have changed.
func (s *Stage) rename(k vip.ServiceKey) {
	for _, f := range s.renamed {
		f(k)
	}
}

// nextSerial returns a serial above all former ones: the time, in seconds, or one more than the last.
func (s *Stage) nextSerial() uint32 {
	s.serial = max(s.serial+1, uint32(time.Now().Unix()))
	return s.serial
}

// report writes the tables of conflicts and contested names. Without an address of a server, nobody
// answers for any name, and there are no conflicts.
func (s *Stage) report(changes []zone.ConflictChange) {
	for _, c := range changes {
		s.contest(c.Name)
		if !c.Gone && len(s.Settings.Servers) > 0 {
			s.conflicts.Set(c.Conflict)
		} else {
			s.conflicts.Delete(c.ConflictKey)
		}
	}
}

// contest updates the row of a name in the table of contested names.
func (s *Stage) contest(name string) {
	if winner, ok := s.zone.Load().Contested(name); ok {
		s.contested.Set(contested{name, winner})
	} else {
		s.contested.Delete(name)
	}
}

// change returns what the zone should know of a service, by the newest rows. A service that no source
// has listed yet is known by its leases.
func (s *Stage) change(k vip.ServiceKey) zone.Change {
	row, granted := s.Services.Row(k), s.Allocations.Row(k)
	var held *holding
	if s.leased != nil {
		held = s.leased.of[k]
	}
	c := zone.Change{Service: zone.Service{Key: k}}
	switch {
	case row != nil:
		c.Key, c.Hostnames, c.Ports = row.Value.Key, row.Value.Hostnames.List(), row.Value.Ports
	case held == nil || s.listed:
		c.Gone = true
		return c
	}
	switch {
	case granted != nil:
		c.VIPs, c.Since = granted.Value.VIPs, granted.Value.Since
	case held != nil:
		c.VIPs, c.Since = slices.Clone(held.addrs), held.since
	}
	c.Waiting = len(c.VIPs) == 0 && (granted == nil ||
		vip.HasCode(granted.Value.Problems, vip.CodeWaiting) || vip.HasCode(granted.Value.Problems, vip.CodeStore))
	return c
}

// finish states that every source has listed its services, all of which are in the zone. Complete
// states the same of allocations. It reports whether anything changed.
func (s *Stage) finish(complete bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leased == nil && s.listed {
		return false
	}
	first := !s.listed
	s.listed = true
	if first || complete {
		touched := make(map[vip.ServiceKey]bool)
		for k := range s.leased.of { // of the others, the zone already has the newest
			if s.Services.Row(k) == nil || complete && s.Allocations.Row(k) == nil {
				touched[k] = true
			}
		}
		if complete {
			s.leased = nil
		}
		for changes := range slices.Chunk(s.changes(touched), chunk) {
			s.apply(changes)
		}
	}
	if first {
		s.report(s.zone.Load().SetSynced())
		s.held = nil
		close(s.synced)
		s.Log.Info("names of services are complete", "names", s.zone.Load().Len())
	}
	return first || complete
}

// Reconfigure replaces the settings. Queries are answered by the former ones until the zone with the
// new ones is complete, when it returns; so the table of conflicts follows the zone. It costs
// O(services log services). The error says what is wrong with the settings, and that the former ones
// stay in effect.
func (s *Stage) Reconfigure(settings zone.Settings) error {
	z, err := zone.New(settings)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	former := make(map[zone.ConflictKey]bool)
	for k := range s.conflicts.All() {
		former[k] = true
	}
	if s.listed {
		z.SetSynced()
	} else {
		z.Hold(s.held)
	}
	known := make(map[vip.ServiceKey]bool)
	for k := range s.Services.All() {
		known[k] = true
	}
	if s.leased != nil {
		for k := range s.leased.of {
			known[k] = true
		}
	}
	conflicts := z.Apply(s.nextSerial(), s.changes(known))
	s.Settings = settings
	s.zone.Store(z)
	for _, c := range conflicts {
		delete(former, c.ConflictKey)
	}
	for k := range former {
		conflicts = append(conflicts, zone.ConflictChange{Conflict: zone.Conflict{ConflictKey: k}, Gone: true})
	}
	s.report(conflicts)
	for k := range s.Services.All() {
		s.rename(k)
	}
	var names []string
	for name := range s.contested.All() {
		names = append(names, name)
	}
	for _, name := range names { // those of the former zone, too
		s.contest(name)
	}
	return nil
}

// leased is what services held when the process started.
type leased struct {
	of     map[vip.ServiceKey]*holding
	leases map[netip.Addr]*ipam.Lease
}

// holding is what one service holds.
type holding struct {
	addrs []netip.Addr // IPv4 first
	since vip.Instant  // of the oldest lease
}

func newLeased() *leased {
	return &leased{of: make(map[vip.ServiceKey]*holding), leases: make(map[netip.Addr]*ipam.Lease)}
}

// set updates what the holders of a lease hold, and adds them to touched.
func (l *leased) set(lease *ipam.Lease, deleted bool, touched map[vip.ServiceKey]bool) {
	addr := lease.Resource.Addr
	if !addr.IsValid() {
		return // a node port
	}
	if former := l.leases[addr]; former != nil {
		delete(l.leases, addr)
		for i := range former.Holders {
			k := former.Holders[i].Service
			touched[k] = true
			h := l.of[k]
			if h.addrs = slices.DeleteFunc(h.addrs, func(a netip.Addr) bool { return a == addr }); len(h.addrs) == 0 {
				delete(l.of, k)
			}
		}
	}
	if deleted || lease.State != ipam.Held {
		return
	}
	l.leases[addr] = lease
	for i := range lease.Holders {
		k := lease.Holders[i].Service
		touched[k] = true
		h := l.of[k]
		if h == nil {
			h = &holding{since: lease.Since}
			l.of[k] = h
		}
		h.addrs = append(h.addrs, addr)
		slices.SortFunc(h.addrs, netip.Addr.Compare)
		if lease.Since.Before(h.since) {
			h.since = lease.Since
		}
	}
}
