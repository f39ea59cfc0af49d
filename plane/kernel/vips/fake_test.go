package vips

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// fakeKernel is the device in memory: rtnetlink, and a netlink socket that changes routes. It refuses what the kernel would
// refuse, and records the changes of routes, and those of the inner plane.
type fakeKernel struct {
	index  int // of the device; 0: there is none
	made   int
	routes map[netip.Addr]bool
	addrs  map[netip.Addr]bool
	fails  func(what string) error // the fault of a change; nil: none
	trace  []string
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{routes: map[netip.Addr]bool{}, addrs: map[netip.Addr]bool{}}
}

// with makes the device with routes.
func (k *fakeKernel) with(routes ...netip.Addr) *fakeKernel {
	k.made++
	k.index = k.made
	k.addrs[netip.MustParseAddr("169.254.255.1")] = true
	for _, a := range routes {
		k.routes[a] = true
	}
	return k
}

// refusing makes every change fail.
func (k *fakeKernel) refusing(err error) *fakeKernel {
	k.fails = func(string) error { return err }
	return k
}

// delete deletes the device.
func (k *fakeKernel) delete() {
	k.index = 0
	clear(k.routes)
	clear(k.addrs)
}

func (k *fakeKernel) device() *host.Device {
	return &host.Device{Name: DefaultDevice, Stats: new(atomic.Uint64), Conn: k, Dial: func() (host.Links, error) { return fakeLinks{k}, nil }}
}

// took returns what was recorded since the last call.
func (k *fakeKernel) took() string {
	defer func() { k.trace = nil }()
	return strings.Join(k.trace, ", ")
}

func (k *fakeKernel) fault(format string, args ...any) error {
	if k.fails == nil {
		return nil
	}
	return k.fails(fmt.Sprintf(format, args...))
}

func (k *fakeKernel) Close() {}

func (k *fakeKernel) Write(_ context.Context, n int, put func(b []byte, i int) []byte, done func(i int, err error)) error {
	if err := k.fault("send"); err != nil {
		return err
	}
	for i := range n {
		b := put(nil, i)
		netlink.EndMessage(b, 1, 1)
		h, data, _, err := netlink.NextMessage(b)
		if err != nil {
			panic(err)
		}
		done(i, k.message(h.Type, data))
	}
	return nil
}

func (k *fakeKernel) message(typ uint16, data []byte) error {
	r, err := netlink.ReadLocalRoute(data)
	if err != nil || r.Protocol != host.RouteProtocol {
		panic(fmt.Sprintf("a message about another route: %v %v", r, err))
	}
	a, what := r.Dst.Addr(), "remove"
	if typ == unix.RTM_NEWROUTE {
		what = "add"
	}
	k.trace = append(k.trace, fmt.Sprintf("%s %s", what, a))
	if err := k.fault("%s %s", what, a); err != nil {
		return err
	}
	there := k.routes[a]
	switch {
	case int(r.Link) != k.index:
		return unix.ENODEV
	case typ == unix.RTM_NEWROUTE && there:
		return unix.EEXIST
	case typ == unix.RTM_DELROUTE && !there:
		return unix.ESRCH
	case typ == unix.RTM_NEWROUTE:
		k.routes[a] = true
	default:
		delete(k.routes, a)
	}
	return nil
}

func (k *fakeKernel) Query(_ context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error {
	b := put(nil)
	netlink.EndMessage(b, 1, 1)
	_, data, _, err := netlink.NextMessage(b)
	for a := range k.routes {
		if is4 := data[0] == unix.AF_INET; err == nil && a.Is4() == is4 {
			m := []byte{data[0], byte(a.BitLen()), 0, 0, unix.RT_TABLE_LOCAL, host.RouteProtocol, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0}
			err = each(unix.RTM_NEWROUTE, netlink.AppendAttr32(netlink.AppendAddr(m, unix.RTA_DST, a), unix.RTA_OIF, uint32(k.index)))
		}
	}
	return err
}

// fakeLinks is rtnetlink.
type fakeLinks struct{ k *fakeKernel }

func (l fakeLinks) Close()                         {}
func (l fakeLinks) LinkList() ([]rtnl.Link, error) { return nil, nil }
func (l fakeLinks) LinkSetARPOff(rtnl.Link) error  { return nil }
func (l fakeLinks) LinkSetUp(rtnl.Link) error      { return nil }
func (l fakeLinks) LinkDel(rtnl.Link) error        { l.k.delete(); return nil }

func (l fakeLinks) LinkByName(name string) (rtnl.Link, error) {
	if l.k.index == 0 {
		return nil, rtnl.LinkNotFoundError{}
	}
	attrs := rtnl.NewLinkAttrs()
	attrs.Name, attrs.Index, attrs.RawFlags = name, l.k.index, unix.IFF_UP|unix.IFF_NOARP
	return &rtnl.Dummy{LinkAttrs: attrs}, nil
}

func (l fakeLinks) LinkAdd(rtnl.Link) error {
	if err := l.k.fault("link add"); err != nil {
		return err
	}
	l.k.trace = append(l.k.trace, "make the device")
	l.k.made++
	l.k.index = l.k.made
	return nil
}

func (l fakeLinks) AddrAdd(_ rtnl.Link, a *rtnl.Addr) error {
	addr, _ := netip.AddrFromSlice(a.IP)
	l.k.addrs[addr.Unmap()] = true
	return nil
}

func (l fakeLinks) AddrList(rtnl.Link, int) (out []rtnl.Addr, err error) {
	for a := range l.k.addrs {
		out = append(out, rtnl.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}})
	}
	return out, nil
}

// inner is a dataplane in memory, which records its updates in the trace of the kernel.
type inner struct {
	reconcile.Quiet[vip.FrontendKey, vip.Frontend]
	reconcile.Plane // not used
	k               *fakeKernel
	have            map[vip.FrontendKey]*vip.Frontend
	orphans         []observed
	errs            map[vip.FrontendKey]error // of updates
	err             error                     // of batches
}

func (p *inner) Changed() <-chan struct{}               { return nil }
func (p *inner) Check(context.Context) (driftOf, error) { return driftOf{}, nil }

func (p *inner) Apply(_ context.Context, batch []updateOf) error {
	var all []string
	for i := range batch {
		u := &batch[i]
		sign := "+"
		if u.New == nil {
			sign = "-"
		}
		all = append(all, sign+u.Key.String())
		if u.Err = p.errs[u.Key]; u.Err != nil {
			continue
		}
		if u.New != nil {
			p.have[u.Key] = u.New
		} else {
			delete(p.have, u.Key)
		}
	}
	p.k.trace = append(p.k.trace, "apply "+strings.Join(all, " "))
	return p.err
}

func (p *inner) Actual(ctx context.Context) iter.Seq2[observed, error] {
	return reconcile.ReadAll(ctx, func(context.Context) ([]observed, error) {
		out := slices.Clone(p.orphans)
		for _, key := range slices.SortedFunc(maps.Keys(p.have), vip.CompareFrontendKeys) {
			out = append(out, observed{Value: *p.have[key]})
		}
		return out, nil
	})
}
