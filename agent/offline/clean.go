package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/announce/remains"
	"github.com/ironvip/ironvip/announce/routes"
	"github.com/ironvip/ironvip/api/snapshot"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/vip"
)

// CleanRequest describes a "dataplane clean".
type CleanRequest struct {
	Config   string // a file, or a directory that holds ironvip.toml
	StateDir string // "": from the configuration
	Force    bool   // also while an agent runs
	Pools    bool   // also services in the pools that have no other sign of being ours
	DryRun   bool   // change nothing
}

// CleanResult is what is, or was, ours in the kernel.
type CleanResult struct {
	Removed bool        `json:"removed"`
	Items   []CleanItem `json:"items"`
	Left    []CleanItem `json:"left"`  // what is kept although it might be ours
	Notes   []string    `json:"notes"` // what can't be determined, and what else is kept
}

// CleanItem is one thing in the kernel. Kind is "service", "address", "tunnel", "table", "device",
// "routes", "setting" or "resolver".
type CleanItem struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Detail string `json:"detail"`
}

// Clean finds what an agent of this configuration and its announcer left in the kernel and, unless it is
// a dry run, removes it. No running agent is needed. Its errors may be an Error.
func Clean(ctx context.Context, req CleanRequest) (CleanResult, error) {
	result := CleanResult{Items: []CleanItem{}, Left: []CleanItem{}, Notes: []string{}}
	cfg, problems := configs.LoadOrLastGood(req.Config, req.StateDir)
	if _, err := os.Stat(req.Config); cfg == nil && errors.Is(err, fs.ErrNotExist) { // cleaning must also work after uninstalling
		cfg, problems = configs.Parse(filepath.Join(req.Config, configs.ConfigName), nil)
		if cfg != nil && req.StateDir != "" {
			cfg.Node.StateDir = req.StateDir
		}
	}
	if cfg == nil {
		return result, configs.Refusal("the configuration, which names the device and the pools, can't be used", problems)
	}
	note := func(format string, args ...any) { result.Notes = append(result.Notes, fmt.Sprintf(format, args...)) }
	switch _, err := os.Stat(cfg.Path); {
	case cfg.IsLastGood:
		note("%s refused: using the last good configuration", cfg.Path)
	case errors.Is(err, fs.ErrNotExist):
		note("config file %s not found; using defaults (device %s, no pools)", cfg.Path, cfg.Dataplane.Device)
	}
	if err := answers(ctx, cfg.API.Socket, agentRuns); err != nil && !req.Force {
		return result, err
	}
	if err := answers(ctx, cfg.Announce.Socket, announcerRuns); err != nil && !req.Force {
		return result, err
	}
	leases, release, err := leasesOf(ctx, cfg, req.Force, note)
	if err != nil {
		return result, err
	}
	defer release() // until the end, so that no agent starts meanwhile

	pools, err := allocator.Prepare(memstore.New(), cfg.IPAMConfig(), allocator.Options{Clock: &table.Clock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return result, err
	}
	owns := func(addr netip.Addr) bool {
		_, leased := leases[ipam.Resource{Addr: addr}]
		return leased || req.Pools && pools.Owns(addr)
	}
	l := leftovers{note: note}
	defer l.close()
	if err := l.find(ctx, cfg, owns); err != nil {
		return result, cleanFailed("look for what was left", err)
	}
	for _, p := range l.parts {
		result.Items = append(result.Items, p.items...)
	}
	resolver := false
	if l.device.Foreign != "" { // otherwise systemd-resolved forgets the device's settings with the device
		if resolver, err = resolved.Remains(ctx, cfg.ResolvedSettings()); err != nil && cfg.ResolvedSettings().On {
			note("whether systemd-resolved still asks the agent is not known: %v", err)
		}
	}
	if resolver {
		result.Items = append(result.Items, CleanItem{Kind: "resolver", Name: cfg.Dataplane.Device, Detail: "DNS servers and domains of this device in systemd-resolved"})
	}
	left := func(kind, name, detail string) {
		result.Left = append(result.Left, CleanItem{Kind: kind, Name: name, Detail: detail})
	}
	if l.device.Foreign != "" {
		left("device", cfg.Dataplane.Device, fmt.Sprintf("a %s, and ours is a dummy, or a bridge without ports and ARP: somebody else made it, and it stays with every address on it", l.device.Foreign))
	}
	for _, k := range l.others {
		switch lease := leases[ipam.Resource{NodePort: k.Port, Protocol: k.Protocol}]; {
		case pools.Owns(k.Addr):
			left("service", k.String(), "in a pool, and nothing says that it is ours: "+deletion(k)+", or --pools")
		case len(lease.Holders) > 0:
			left("service", k.String(), fmt.Sprintf("on a node port of %s, and not on record as ours: %s", lease.Holders[0].Service, deletion(k)))
		}
	}
	if req.DryRun || len(result.Items) == 0 {
		return result, nil
	}
	var errs []error
	for _, p := range l.parts {
		if len(p.items) > 0 {
			errs = append(errs, p.remove(ctx))
		}
	}
	if resolver {
		errs = append(errs, resolved.Remove(ctx, cfg.ResolvedSettings()))
	}
	if err := errors.Join(errs...); err != nil {
		return result, cleanFailed("remove what was left", err)
	}
	result.Removed = true
	note("these sysctls stay as they are: %s", strings.Join(ipvs.Sysctls(), " "))
	return result, nil
}

// cleanPart is what one part of ironvip has left.
type cleanPart struct {
	items  []CleanItem
	remove func(context.Context) error
	closer io.Closer // nil: nothing to close
}

func (p *cleanPart) add(kind, name, detail string) {
	p.items = append(p.items, CleanItem{Kind: kind, Name: name, Detail: detail})
}

// leftovers are what is ours, in the order of removal: addresses go before what they lead to, and the device last.
type leftovers struct {
	parts  []*cleanPart
	device *vips.Remains
	others []vip.FrontendKey // with services of others in IPVS
	note   func(string, ...any)
}

func (l *leftovers) add(closer io.Closer, remove func(context.Context) error) *cleanPart {
	p := &cleanPart{remove: remove, closer: closer}
	l.parts = append(l.parts, p)
	return p
}

func (l *leftovers) close() {
	for _, p := range l.parts {
		if p.closer != nil {
			_ = p.closer.Close()
		}
	}
}

// find looks for everything. Owns reports whether the services of IPVS at an address are ours, besides those on record and
// at an address of the device.
func (l *leftovers) find(ctx context.Context, cfg *configs.Config, owns func(netip.Addr) bool) error {
	announced, err := remains.Find(ctx, cfg.Announce.Socket)
	if err != nil {
		return err
	}
	listAnnounced(l.add(nil, announced.Remove), &announced)
	name := cfg.Dataplane.Device
	if l.device, err = vips.Find(ctx, name); err != nil {
		return err
	}
	p := l.add(l.device, l.device.RemoveAddresses)
	for _, addr := range l.device.Addresses {
		p.add("address", addr.String(), "on "+l.device.Device)
	}
	h := plane.Host{Device: name, Owns: func(a netip.Addr) bool { return l.device.Has(a) || owns(a) }}
	for _, k := range configs.Dataplanes {
		if err := l.findKind(ctx, k, h); err != nil {
			return err
		}
	}
	if l.device.Device != "" {
		l.add(nil, func(context.Context) error { return l.device.Remove() }).add("device", l.device.Device, "")
	}
	return nil
}

// findKind looks for what a dataplane has left.
func (l *leftovers) findKind(ctx context.Context, k *plane.Kind, h plane.Host) error {
	if k.Find == nil {
		return nil
	}
	found, err := k.Find(ctx, h)
	if blind, is := errors.AsType[plane.Blind](err); is {
		l.note("%v: nothing of the %s dataplane can be there", blind, k.Mode)
		return nil
	}
	if err != nil || found == nil {
		return err
	}
	p := l.add(found, found.Remove)
	left, err := found.Left(ctx)
	listLeft(p, &left, "nftables, of the "+k.Mode+" dataplane")
	l.others = append(l.others, left.Others...)
	return err
}

// listLeft adds what a dataplane of the kernel has left.
func listLeft(p *cleanPart, left *usage.Left, table string) {
	for _, f := range left.Frontends {
		detail := "in the damaged nftables table"
		if f.Scheduler != 0 {
			detail = f.Scheduler.String() + ", " + text.Plural(len(f.Backends), "backend")
		}
		p.add("service", f.Key.String(), detail)
	}
	for _, end := range left.Tunnels {
		p.add("tunnel", end.String(), "a device that takes packets out of tunnels to this address")
	}
	if left.PathTable != "" {
		p.add("table", "inet "+left.PathTable, "nftables, with the IPVS services by mark of "+text.Plural(left.Paths, "path")+" of health probes")
	}
	if left.Table != "" {
		p.add("table", "inet "+left.Table, table)
	}
}

// listAnnounced adds what the announcer has left.
func listAnnounced(p *cleanPart, a *remains.Remains) {
	if n := len(a.Routes); n > 0 {
		p.add("routes", fmt.Sprintf("table %d", routes.DefaultTable), text.Plural(n, "route")+" to virtual addresses, for a router on this host")
	}
	for _, t := range a.Tables {
		p.add("table", t, "nftables, the gate of the announcer: this host stays silent about virtual addresses")
	}
	for _, s := range a.Settings {
		p.add("setting", "arp_announce of "+s.Name, fmt.Sprintf("%d before the announcer", s.Before))
	}
}

// deletion returns the command that deletes one IPVS service.
func deletion(k vip.FrontendKey) string {
	kind := map[vip.Protocol]string{vip.TCP: "-t", vip.UDP: "-u"}
	return fmt.Sprintf("ipvsadm -D %s %s", cmp.Or(kind[k.Protocol], "--sctp-service"), k.AddrPort())
}

// answers returns an error if a process listens on a socket.
func answers(ctx context.Context, socket string, runs func(where string) error) error {
	if socket == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil
	}
	conn.Close()
	return runs("at " + socket)
}

func announcerRuns(where string) error {
	return &Error{fmt.Errorf("an announcer runs %s", where), CauseRunning,
		"stop it first: systemctl stop ironvip-announcer; with --force what it has in the kernel is removed all the same, and it restores that"}
}

func agentRuns(where string) error {
	return &Error{fmt.Errorf("an agent runs %s", where), CauseRunning,
		"stop it first: systemctl stop ironvip; with --force what it programmed is removed all the same, and it puts that back at its next resync"}
}

// leasesOf reads the leases in the state file or in the store of a fleet. If that store is
// unavailable, it reads the fleet's leases from the state file. Without the file it returns no
// leases and calls note. Release releases the file.
func leasesOf(ctx context.Context, cfg *configs.Config, force bool, note func(string, ...any)) (leases map[ipam.Resource]ipam.Lease, release func(), err error) {
	path := stores.StatePath(cfg)
	unknown := func(why string) (map[ipam.Resource]ipam.Lease, func(), error) {
		note("%s: which addresses are leased is not known; what the nftables table has on record and what is on %s is", why, cfg.Dataplane.Device)
		return nil, func() {}, nil
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) { // opening would create the file
		return unknown("there is no state file " + path)
	}
	db, err := store.Open(path)
	switch {
	case errors.Is(err, store.ErrLocked) && force:
		return unknown("an agent has " + path + " open")
	case errors.Is(err, store.ErrLocked):
		return nil, nil, agentRuns("with the state directory " + cfg.Node.StateDir)
	case errors.Is(err, fs.ErrPermission):
		return nil, nil, &Error{err, CausePermission, "run this as root"}
	case err != nil:
		return unknown(err.Error())
	}
	s, err := stores.Open(cfg, db, idleOptions())
	if err != nil {
		return unknown(err.Error())
	}
	limited, cancel := context.WithTimeout(ctx, 2*fleet.GracePeriod)
	defer cancel()
	var all snapshot.Contents
	if err = s.Wait(limited, func(string) {}); err == nil {
		all, err = s.Contents(ctx)
	}
	if err != nil {
		return unknown(errors.Join(err, s.Close()).Error())
	}
	return all.Leases, func() { s.Close() }, nil
}

// cleanFailed returns an error that names the operation and, if they are the cause, the missing
// privileges.
func cleanFailed(what string, err error) error {
	failed := &Error{fmt.Errorf("%s: %w", what, err), CauseOther, ""}
	if errors.Is(err, fs.ErrPermission) {
		failed.Cause, failed.Hint = CausePermission, "run this as root: it takes CAP_NET_ADMIN"
	}
	return failed
}
