package connect

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ironvip/ironvip/internal/sockdiag"
	"github.com/ironvip/ironvip/plane/kernel/slots"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Options are the settings of a Plane.
type Options struct {
	Cgroup string     // whose programs are served, see Cgroup
	Files  []*os.File // of an earlier process, see Plane.Files; Open closes them
	Host   string     // the name of this host, which is one client for the schedulers sh and mh
	// AllNamespaces states that programs in all network namespaces are served, not only those in that of this process.
	AllNamespaces bool
}

// Plane balances at connect(). All frontends are in its maps, those that it leaves to the dataplane without slots: an
// address and port may have two frontends, and the one for clients of this host decides.
type Plane struct {
	reconcile.Quiet[vip.FrontendKey, vip.Frontend]
	o       Options
	objects *objects

	services, slots, backends, counters, affinities, sessions *ebpf.Map

	// The reconciler alone uses these.
	last      uint32        // the last number of a table
	shares    []slots.Share // room, as chosen
	chosen    []place
	nodePorts map[netip.Addr]int // the number of frontends that are node ports, by address
	host      [2]place           // what this process has written to the map of this name

	unclean atomic.Bool
	open    openConnections
}

// Open attaches the programs.
func Open(o Options) (*Plane, error) {
	all, err := attach(o)
	if err != nil {
		return nil, err
	}
	p := &Plane{o: o, objects: all, services: all.maps["services"], slots: all.maps["slots"], backends: all.maps["backends"],
		counters: all.maps["counters"], affinities: all.maps["affinities"], sessions: all.maps["sessions"], nodePorts: map[netip.Addr]int{}}
	if err := p.collect(); err != nil {
		p.Close()
		return nil, fmt.Errorf("read the maps of the earlier process: %w", err)
	}
	if err := p.each(context.Background(), func(sockdiag.Socket, frontend, netip.AddrPort) {}); err != nil { // drains need it
		p.Close()
		return nil, err
	}
	return p, nil
}

// Files returns copies of the descriptors that keep programs and maps alive, for the next process.
func (p *Plane) Files() ([]*os.File, error) { return p.objects.files() }

// Close closes the descriptors.
func (p *Plane) Close() { p.objects.close() }

// collect removes what an earlier process has left of tables without a service, and finds the last number of a table. It
// costs O(all).
func (p *Plane) collect() error {
	used := map[uint32]bool{}
	if err := read(p.services, func(at frontend, s service) {
		used[s.Table], p.last = true, max(p.last, s.Table)
		p.countNodePorts(at, s, 1)
	}); err != nil {
		return err
	}
	var unused tables
	err := read(p.slots, func(s group, _ places) {
		if !used[s.Table] {
			unused.slots = append(unused.slots, s)
		}
	})
	err = errors.Join(err, read(p.backends, func(b backend, _ uint32) {
		if !used[b.table()] {
			unused.backends = append(unused.backends, b)
		}
	}))
	return errors.Join(err, unused.remove(p))
}

// countNodePorts adds n to the number of node ports of an address, if s is one.
func (p *Plane) countNodePorts(at frontend, s service, n int) {
	if s.NodePort == 0 {
		return
	}
	a := addrOf(at.Addr)
	if p.nodePorts[a] += n; p.nodePorts[a] == 0 {
		delete(p.nodePorts, a)
	}
}

// chooseHost writes which addresses the loopback addresses stand for, if they have changed: those with the most node ports.
func (p *Plane) chooseHost() (err error) {
	var host [2]place
	var most [2]int
	for a, n := range p.nodePorts {
		i := 0
		if a.Is6() {
			i = 1
		}
		if n > most[i] || n == most[i] && a.Less(host[i].at().Addr()) {
			host[i], most[i] = placeOf(netip.AddrPortFrom(a, 0)), n
		}
	}
	for i := range host {
		if host[i] != p.host[i] {
			err = errors.Join(err, p.objects.maps["host"].Put(uint32(i), &host[i]))
		}
	}
	if err == nil {
		p.host = host
	}
	return err
}

// Apply implements reconcile.Target. A change of a frontend costs O(its backends), and adds a table; programs use the earlier
// one until the new one is complete.
func (p *Plane) Apply(ctx context.Context, batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) error {
	made := make([]service, len(batch))
	var more, outdated tables
	backends := 0
	for i := range batch {
		if f := batch[i].New; f != nil {
			backends += len(f.Backends)
		}
	}
	more.backends, more.weights = make([]backend, 0, backends), make([]uint32, 0, backends)
	more.slots, more.places = make([]group, 0, len(batch)), make([]places, 0, len(batch))
	for i := range batch {
		if f := batch[i].New; f != nil {
			made[i] = p.table(f, &more)
		}
	}
	failed := more.write(p)
	for i := range batch {
		u := &batch[i]
		if u.Err = p.exchange(u, made[i], failed, &outdated); u.Err != nil {
			u.Err = fmt.Errorf("balance %s at connect(): %w", u.Key, u.Err)
		}
	}
	return errors.Join(ctx.Err(), outdated.remove(p), p.chooseHost())
}

// exchange makes the programs use a new table, if there is one, and returns what they use no more. After an error, the dataplane
// serves the frontend alone.
func (p *Plane) exchange(u *reconcile.Update[vip.FrontendKey, vip.Frontend], made service, err error, outdated *tables) error {
	at := frontendOf(u.Key)
	before, had, failed := lookup[frontend, service](p.services, at)
	if err = errors.Join(err, failed); err == nil && u.New != nil {
		err = p.services.Put(&at, &made)
	}
	if err != nil || u.New == nil {
		err = errors.Join(err, remove(p.services, at))
	} else {
		p.countNodePorts(at, made, 1)
	}
	if had {
		outdated.add(before, u.Old)
		p.countNodePorts(at, before, -1)
	}
	if err != nil && u.New != nil {
		outdated.add(made, u.New)
	}
	if u.New == nil {
		err = errors.Join(err, remove(p.affinities, at), remove(p.counters, counter{Frontend: at}))
	}
	return errors.Join(err, p.leave(at, u.Old, u.New))
}

// leave forgets the counters of the backends that a frontend has no more, whose connections Clean ends.
func (p *Plane) leave(at frontend, old, now *vip.Frontend) (err error) {
	if old == nil {
		return nil
	}
	for _, b := range old.Backends {
		stays, usable := false, false
		if now != nil {
			i, found := slices.BinarySearchFunc(now.Backends, b, vip.CompareEndpoints)
			stays, usable = found, found && now.Backends[i].Weight > 0
		}
		if !stays {
			err = errors.Join(err, remove(p.counters, counter{at, placeOf(b.Addr)}))
		}
		if !stays || !usable && old.Key.Protocol == vip.UDP {
			p.unclean.Store(true)
		}
	}
	return err
}

// tables are entries of backends and slots.
type tables struct {
	backends []backend
	weights  []uint32
	slots    []group
	places   []places
}

// add adds the entries of a table that was made of f; nil: that is unknown.
func (t *tables) add(s service, f *vip.Frontend) {
	for i := range groups(int(s.Slots)) {
		t.slots = append(t.slots, group{s.Table, uint32(i)})
	}
	if f == nil {
		return
	}
	for _, b := range f.Backends {
		t.backends = append(t.backends, backendOf(s.Table, b.Addr))
	}
}

// table adds a new table of a frontend to all.
func (p *Plane) table(f *vip.Frontend, all *tables) service {
	p.last++
	chosen := p.choose(f)
	scheduler, affinity := settingsOf(f)
	for _, b := range f.Backends {
		all.backends, all.weights = append(all.backends, backendOf(p.last, b.Addr)), append(all.weights, uint32(b.Weight))
	}
	for i := range groups(len(chosen)) {
		var of places
		copy(of[:], chosen[i*len(of):])
		all.slots, all.places = append(all.slots, group{p.last, uint32(i)}), append(all.places, of)
	}
	s := service{Table: p.last, Slots: uint32(len(chosen)), Affinity: uint64(affinity), Scheduler: uint32(scheduler)}
	if f.Kind == vip.OnHost {
		s.NodePort = 1
	}
	return s
}

// groups returns the number of groups of n slots.
func groups(n int) int { return (n + len(places{}) - 1) / len(places{}) }

// write adds the entries.
func (t *tables) write(p *Plane) (err error) {
	if len(t.backends) > 0 {
		_, err = p.backends.BatchUpdate(t.backends, t.weights, nil)
	}
	if len(t.slots) > 0 && err == nil {
		_, err = p.slots.BatchUpdate(t.slots, t.places, nil)
	}
	return err
}

// remove deletes the entries.
func (t *tables) remove(p *Plane) error {
	return errors.Join(removeAll(p.backends, t.backends), removeAll(p.slots, t.slots))
}

// choose returns the slots of a frontend; none if it is left to the dataplane. Without an address of their own,
// all programs of this host are one client for sh and mh, so one slot is enough.
func (p *Plane) choose(f *vip.Frontend) (out []place) {
	if !f.Usable() || Left(f) != "" {
		return nil
	}
	if f.Scheduler == vip.SourceHash || f.Scheduler == vip.MaglevHash {
		h := fnv.New32a()
		_, _ = h.Write([]byte(p.o.Host))
		all := slots.ByHash(f)
		return []place{placeOf(all[h.Sum32()%uint32(len(all))])}
	}
	p.shares, _ = slots.SharesOf(p.shares[:0], f)
	out = p.chosen[:0]
	for _, s := range p.shares {
		at := placeOf(s.Addr)
		for range s.N {
			out = append(out, at)
		}
	}
	p.chosen = out
	return out
}

// Actual implements reconcile.Target. It attaches programs that somebody has detached.
func (p *Plane) Actual(ctx context.Context) iter.Seq2[reconcile.Observed[vip.Frontend], error] {
	return reconcile.ReadAll(ctx, func(context.Context) (out []reconcile.Observed[vip.Frontend], err error) {
		if err := p.objects.repair(); err != nil {
			return nil, err
		}
		of := map[uint32][]vip.Endpoint{}
		if err := read(p.backends, func(b backend, weight uint32) {
			of[b.table()] = append(of[b.table()], vip.Endpoint{Addr: b.at(), Weight: uint16(weight)})
		}); err != nil {
			return nil, err
		}
		err = read(p.services, func(at frontend, s service) {
			f := vip.Frontend{Key: at.key(), Scheduler: vip.Scheduler(s.Scheduler), Affinity: time.Duration(s.Affinity), Backends: of[s.Table]}
			if s.NodePort != 0 {
				f.Kind = vip.OnHost
			}
			slices.SortFunc(f.Backends, vip.CompareEndpoints)
			out = append(out, reconcile.Observed[vip.Frontend]{Value: f})
		})
		return out, err
	})
}

// Same implements reconcile.Target.
func (p *Plane) Same(a, b *vip.Frontend) bool { return same(a, b) }
