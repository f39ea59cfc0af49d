package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/api"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/remote"
	"github.com/ironvip/ironvip/vip"
)

// formerState is what another dataplane has in the kernel: of an agent that this one has replaced, or of one that
// ended in between. It ends in three steps, which may be repeated.
type formerState interface {
	Retire(context.Context) error // takes no new connections
	Open(context.Context) (map[vip.FrontendKey]int, error)
	End(context.Context) error // ends what is left
	Close() error
	reconcile.Connections
}

// formerWatch is the interval at which the connections of a former dataplane are counted, and at which a failed step is
// repeated.
const formerWatch = 2 * time.Second

// The first look for a former dataplane, which the first counts wait for.
const (
	formerLooks = 5
	formerPause = 200 * time.Millisecond // between two looks
)

// former is a dataplane that this one has replaced, and that still has connections.
type former struct {
	mode  string
	open  map[vip.Protocol]int
	until time.Time // the last one ends then
	err   error     // why it can't be ended
}

// findFormer returns what another dataplane than mode has left, or nil. The caller closes it.
func (a *agent) findFormer(ctx context.Context, mode string) (formerState, error) {
	device := a.config.startedWith().Dataplane.Device
	switch mode {
	case configs.ModeNFT:
		r, err := nft.Find(ctx, nft.Options{Device: device})
		if err != nil || r.Table == "" {
			return nil, errors.Join(err, closeFound(r))
		}
		return r, nil
	case configs.ModeIPVS:
		o := ipvs.Options{Device: device}
		if a.ranBefore(mode) { // the table, which records the services, may have been deleted
			o.Owns = a.allocator.Owns
		}
		r, err := ipvs.FindRecorded(ctx, o)
		if err != nil || r.Table == "" && len(r.Services) == 0 {
			return nil, errors.Join(err, closeFound(r))
		}
		paths, err := probepath.Find(ctx, probepath.Options{Table: probepath.TableOf(ipvs.TableOf(device))})
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		return formerIPVS{r, paths}, nil
	case configs.ModeProxy:
		if a.ranBefore(mode) {
			return a.findFormerProxy(ctx)
		}
	}
	return nil, nil
}

// formerProxy is the userspace proxy after a switch to a dataplane of the kernel.
type formerProxy struct {
	*remote.Client
	within time.Duration // from now on, its connections may go on
	end    func()
}

// formerWait bounds the wait for its answer.
const formerWait = 5 * time.Second

// findFormerProxy returns the proxy, if it has frontends, or connections of earlier ones.
func (a *agent) findFormerProxy(ctx context.Context) (formerState, error) {
	if a.config.startedWith().Dataplane.ProxySocket == "" && a.proxy.Server == nil { // the process has ended, and they with it
		return nil, nil
	}
	f, known := a.connections.former(configs.ModeProxy).(*formerProxy)
	if !known {
		running, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &formerProxy{Client: a.proxyClient(nil), end: cancel}
		go func() { _ = f.Run(running) }()
	}
	f.within = max(0, time.Until(a.formerSince(configs.ModeProxy).Add(a.hardStopAfter())))
	ctx, cancel := context.WithTimeout(ctx, formerWait)
	defer cancel()
	keys, err := f.Keys(ctx)
	if err == nil && len(keys) == 0 {
		var open map[vip.FrontendKey]int
		if open, err = f.Open(ctx); err == nil && len(open) == 0 {
			return nil, a.dropFormer(f)
		}
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) { // its process has ended, and they with it
		return nil, a.dropFormer(f)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask the proxy for its frontends: %w", err), a.dropFormer(f))
	}
	return f, nil
}

// dropFormer closes a proxy that is no former dataplane any more.
func (a *agent) dropFormer(f *formerProxy) error {
	if a.connections.former(configs.ModeProxy) == formerState(f) {
		return a.connections.setFormer(configs.ModeProxy, nil)
	}
	return f.Close()
}

// handshakeTime is how long a former proxy still accepts the clients that are connecting to it: as long as TCP waits before
// it repeats a packet. The kernel serves all later clients, and nobody accepts those once the proxy's listeners are closed.
const handshakeTime = time.Second

func (f *formerProxy) Retire(ctx context.Context) error {
	if !sleep(ctx, handshakeTime) {
		return ctx.Err()
	}
	return f.Client.Retire(ctx, f.within)
}

// Open returns the number of connections of each protocol.
func (f *formerProxy) Open(ctx context.Context) (map[vip.FrontendKey]int, error) {
	n, err := f.Draining(ctx)
	out := map[vip.FrontendKey]int{}
	if n > 0 {
		out[vip.FrontendKey{Protocol: vip.TCP}] = int(n)
	}
	return out, err // UDP clients have moved with their next datagram
}

// End has nothing to do: the proxy ends its connections in time.
func (f *formerProxy) End(context.Context) error { return nil }

func (f *formerProxy) Close() error {
	f.end()
	return nil
}

// closeFound closes what was found, which may be nil after an error.
func closeFound[R interface {
	comparable
	Close() error
}](r R) error {
	var none R
	if r == none {
		return nil
	}
	return r.Close()
}

// formerIPVS also has the paths of probes.
type formerIPVS struct {
	*ipvs.Remains
	paths *probepath.Remains
}

func (f formerIPVS) Retire(ctx context.Context) error {
	return errors.Join(f.paths.Remove(ctx), f.Remains.Retire(ctx))
}

// End removes the paths of probes first: afterwards, nothing shows that there are any.
func (f formerIPVS) End(ctx context.Context) error {
	if err := f.paths.Remove(ctx); err != nil {
		return err
	}
	return f.Remains.End(ctx)
}

func (f formerIPVS) Close() error { return errors.Join(f.paths.Close(), f.Remains.Close()) }

// endFormers ends what the other dataplanes have in the kernel, once this agent serves all clients alone. Until then, the
// other dataplane serves what this one does not serve yet.
func (a *agent) endFormers(ctx context.Context) error {
	defer a.connections.close()
	for _, mode := range otherModes(a.plane.about.Mode) { // it already has connections to count
		a.lookForFormer(ctx, mode)
	}
	close(a.connections.looked)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.settled:
	}
	a.notePlane()
	for _, mode := range otherModes(a.plane.about.Mode) {
		for {
			err := a.endFormer(ctx, mode)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err == nil || errors.Is(err, fs.ErrPermission) { // without the rights, there is nothing that this agent may end
				break
			}
			a.log.Warn("state of another dataplane not removed; trying again", "dataplane", mode, "err", err)
			a.former.Store(&former{mode: mode, err: err})
			if !sleep(ctx, formerWatch) {
				return ctx.Err()
			}
		}
		a.former.Store(nil)
	}
	<-ctx.Done()
	return ctx.Err()
}

// lookForFormer finds what another dataplane has in the kernel, for counts of connections. It tries again, because a list of
// the kernel fails if something changes meanwhile. The end of the dataplane reports an error that stays.
func (a *agent) lookForFormer(ctx context.Context, mode string) {
	for range formerLooks {
		f, err := a.findFormer(ctx, mode)
		if err == nil && f != nil {
			_ = a.connections.setFormer(mode, f)
		}
		if err == nil || errors.Is(err, fs.ErrPermission) || !sleep(ctx, formerPause) {
			return
		}
	}
}

// otherModes returns the other dataplanes.
func otherModes(mode string) []string {
	return slices.DeleteFunc(slices.Clone(preference), func(m string) bool { return m == mode })
}

// endFormer ends one other dataplane: it takes no new connections, and is removed with its last connection, or after
// hard_stop_after.
func (a *agent) endFormer(ctx context.Context, mode string) error {
	f, err := a.findFormer(ctx, mode)
	if err != nil {
		return err
	}
	if err := a.connections.setFormer(mode, f); err != nil {
		return err
	}
	if f == nil { // it may have ended without this agent, with a reboot
		a.forgetFormer(mode)
		return nil
	}
	now := a.plane.about.Mode
	what := fmt.Sprintf("%s replaces %s", now, mode)
	since := a.formerSince(mode)
	a.log.Info("retiring another dataplane", "dataplane", mode, "since", since, "connections_end_within", a.hardStopAfter())
	if keepsOpen(mode, now) {
		if err := f.Retire(ctx); err != nil {
			return fmt.Errorf("retire %s: %w", mode, err)
		}
		a.events.Add(event.Event{Kind: "dataplane_retired", Object: mode, Message: what + ": new connections no longer go there"})
	}
	var left map[vip.Protocol]int
	for keepsOpen(mode, now) {
		until := since.Add(a.hardStopAfter())
		open, err := f.Open(ctx)
		if err != nil && time.Now().Before(until) {
			return fmt.Errorf("count the connections of %s: %w", mode, err)
		} else if err != nil {
			a.log.Warn("connections of another dataplane are ended without a count of them", "dataplane", mode, "err", err)
			break
		}
		left = byProtocol(open)
		a.former.Store(&former{mode: mode, open: left, until: until})
		if total(left) == 0 || !time.Now().Before(until) {
			break
		}
		if !sleep(ctx, min(formerWatch, time.Until(until))) {
			return ctx.Err()
		}
	}
	if err := f.End(ctx); err != nil {
		return fmt.Errorf("remove %s: %w", mode, err)
	}
	if err := a.connections.setFormer(mode, nil); err != nil {
		a.log.Debug("close what ended another dataplane", "dataplane", mode, "err", err)
	}
	a.forgetFormer(mode)
	message := what + ": everything that was left is removed"
	if total(left) > 0 {
		message += ", with " + connectionsText(left)
	}
	a.log.Info("another dataplane removed", "dataplane", mode, "connections_ended", total(left))
	a.events.Add(event.Event{Kind: "dataplane_removed", Object: mode, Message: message})
	return nil
}

// keepsOpen reports whether the connections of one dataplane continue while another one serves new clients. IPVS takes
// every packet of its services before the sockets of the userspace proxy, so both can't have one address and port.
func keepsOpen(from, to string) bool {
	return from != configs.ModeIPVS || to != configs.ModeProxy
}

func byProtocol(open map[vip.FrontendKey]int) map[vip.Protocol]int {
	out := map[vip.Protocol]int{}
	for key, n := range open {
		out[key.Protocol] += n
	}
	return out
}

func total(open map[vip.Protocol]int) (n int) {
	for _, x := range open {
		n += x
	}
	return n
}

// connectionsText returns "2 connections by tcp, 1 connection by udp".
func connectionsText(open map[vip.Protocol]int) string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(open)) {
		if n := open[p]; n > 0 {
			out = append(out, fmt.Sprintf("%s by %s", text.Plural(n, "connection"), p))
		}
	}
	return strings.Join(out, ", ")
}

// formers returns the dataplanes that this one has replaced.
func (a *agent) formers() (out []former) {
	if f := a.former.Load(); f != nil {
		out = append(out, *f)
	}
	return out
}

func (f *former) String() string {
	if f.err != nil {
		return f.err.Error()
	}
	return fmt.Sprintf("%s drains: %s, %s at most", f.mode, cmp.Or(connectionsText(f.open), "no connections"), max(0, time.Until(f.until).Round(time.Second)))
}

// dataplane returns the dataplane for the API.
func (a *agent) dataplane() api.Dataplane {
	about := a.plane.now()
	about.Switching = a.switching()
	for _, f := range a.formers() {
		row := v1.FormerDataplane{Mode: f.mode, Connections: total(f.open)}
		if f.err != nil {
			row.Problem = f.err.Error()
		} else {
			row.Until = &f.until
		}
		about.Former = append(about.Former, row)
	}
	return about
}

// formerChecks returns the line of `ironvip status` about the dataplanes that this one has replaced.
func (a *agent) formerChecks() []v1.Check {
	formers := a.formers()
	if len(formers) == 0 {
		return nil
	}
	c := v1.Check{Name: "former dataplane", Level: v1.LevelOK}
	var lines []string
	for _, f := range formers {
		if lines = append(lines, f.String()); f.err != nil {
			c.Level, c.Hint = v1.LevelWarn, "it is tried again; ironvip events"
		}
	}
	c.Message = strings.Join(lines, "; ")
	return []v1.Check{c}
}

// sleep waits, and returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
