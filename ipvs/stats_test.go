package ipvs

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kerneltest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func addrPortKey(at string, p vip.Protocol) vip.FrontendKey {
	return frontendKey(netip.MustParseAddrPort(at), p)
}

func frontendKey(at netip.AddrPort, p vip.Protocol) vip.FrontendKey {
	return vip.FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: p}
}

// cannedIPVS is a socket that returns captured answers.
type cannedIPVS struct {
	netlink.Socket
	all   []string            // the answer to a dump of services
	one   map[string]string   // the answers about one service, by the request
	dests map[string][]string // the answers about destinations, by the request

	questions *int // counts the requests, if not nil
}

func (c cannedIPVS) Query(_ context.Context, put func([]byte) []byte, each func(uint16, []byte) error) error {
	if c.questions != nil {
		*c.questions++
	}
	m := put(nil)
	netlink.EndMessage(m, 1, 1)
	h, data, _, err := netlink.NextMessage(m)
	if err != nil {
		return err
	}
	answers := c.all
	if data[0] == kernel.CmdGetDest || h.Flags&unix.NLM_F_DUMP == 0 {
		s, _, err := kernel.DecodeService(data)
		if err != nil {
			return err
		}
		asked := fmt.Sprintf("%s mark %d", s.Key, s.Mark)
		if answers = c.dests[asked]; data[0] == kernel.CmdGetService {
			one, ok := c.one[asked]
			if !ok {
				return unix.ESRCH
			}
			answers = []string{one}
		}
	}
	for _, a := range answers {
		b, err := hex.DecodeString(a)
		if err == nil {
			err = each(0, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tableText is the text of the kernel's table.
type tableText string

func (s tableText) Read() (map[kernel.ServiceID]kernel.Live, error) {
	return kernel.ParseTable(strings.NewReader(string(s)))
}

// everyFrontend selects all frontends of the dataplane for Totals.
func everyFrontend(vip.FrontendKey) bool { return true }

// Captured messages become statistics of frontends. UDP connections, which the kernel all calls
// inactive, are active. A service by mark without a frontend is left out. The destinations of a
// service that the table lacks are read.
func TestTotalsAndBreakdown(t *testing.T) {
	tcp, udp := addrPortKey("10.96.0.1:80", vip.TCP), addrPortKey("[fd96::1]:53", vip.UDP)
	canned := cannedIPVS{
		all:   []string{kerneltest.UDP6, kerneltest.TCP, kerneltest.Mark},
		one:   map[string]string{"10.96.0.1:80/tcp mark 0": kerneltest.TCP, "[fd96::1]:53/udp mark 0": kerneltest.UDP6},
		dests: map[string][]string{"10.96.0.1:80/tcp mark 0": {kerneltest.Dest}, "[fd96::1]:53/udp mark 0": {kerneltest.Dest}},
	}
	with := func(t reconcile.Traffic, active, inactive uint64) reconcile.Traffic {
		t.Active, t.Inactive = active, inactive
		return t
	}
	p := Target{statsReader: &statsReader{stats: &counters{}, kernel: &kernel.Conn{Socket: canned}, conns: tableText(kerneltest.Table).Read}}
	same := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}
	all, err := p.Totals(t.Context(), everyFrontend)
	want := map[vip.FrontendKey]reconcile.Traffic{tcp: with(kerneltest.WantTCP, 1, 5), udp: with(kerneltest.WantUDP6, 5, 0)}
	if d := cmp.Diff(want, all, same); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
	for key, want := range map[vip.FrontendKey]reconcile.Breakdown{
		tcp: {Traffic: with(kerneltest.WantTCP, 1, 2), Endpoints: map[netip.AddrPort]reconcile.Traffic{addrPort("10.77.1.2:8080"): with(kerneltest.WantDest, 1, 2)}},
		udp: {Traffic: with(kerneltest.WantUDP6, 3, 0), Endpoints: map[netip.AddrPort]reconcile.Traffic{addrPort("10.77.1.2:8080"): with(kerneltest.WantDest, 3, 0)}},
	} {
		got, found, err := p.Breakdown(t.Context(), key)
		if d := cmp.Diff(want, got, same); err != nil || !found || d != "" {
			t.Errorf("%s: found %v, %v, -want +got:\n%s", key, found, err, d)
		}
	}
	if _, found, err := p.Breakdown(t.Context(), addrPortKey("10.96.0.9:80", vip.TCP)); err != nil || found {
		t.Errorf("what isn't there: %v, %v", found, err)
	}
	p.statsReader.conns = tableText("\n\n\n" + "TCP  0A600001:0050 wrr  \n").Read
	all, err = p.Totals(t.Context(), everyFrontend)
	want = map[vip.FrontendKey]reconcile.Traffic{tcp: with(kerneltest.WantTCP, 0, 0), udp: with(kerneltest.WantUDP6, 3, 0)}
	if d := cmp.Diff(want, all, same); err != nil || d != "" {
		t.Errorf("with a table of one service: %v, -want +got:\n%s", err, d)
	}
	canned.questions = new(int)
	p.statsReader.kernel = &kernel.Conn{Socket: canned}
	all, err = p.Totals(t.Context(), func(k vip.FrontendKey) bool { return k == tcp })
	want = map[vip.FrontendKey]reconcile.Traffic{tcp: with(kerneltest.WantTCP, 0, 0)}
	if d := cmp.Diff(want, all, same); err != nil || d != "" || *canned.questions != 1 {
		t.Errorf("one of two is asked for, the table lacks the other: %d questions, %v, -want +got:\n%s", *canned.questions, err, d)
	}
	p.statsReader.conns = tableText("\n\n\n" + "TCP  0A600001\n").Read
	if all, err := p.Totals(t.Context(), everyFrontend); err == nil || all != nil {
		t.Errorf("with a broken table: %+v, %v", all, err)
	}
}

// fakeConnections is a fakeKernel's table without connections.
type fakeConnections struct{ k *fakeKernel }

func (f fakeConnections) Read() (map[kernel.ServiceID]kernel.Live, error) {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	all := map[kernel.ServiceID]kernel.Live{}
	for _, s := range f.k.services {
		all[kernel.IDOf(&s.Service)] = kernel.Live{}
	}
	return all, nil
}

// Statistics work again after the module was unloaded and loaded.
func TestStatisticsAfterAReload(t *testing.T) {
	k := newFakeKernel()
	p := k.target(t)
	key := addrPortKey("10.96.0.1:80", vip.TCP)
	for range 2 {
		k.alter(func() { k.put(kernel.Service{Key: key, Scheduler: "rr"}, kernel.Dest{Addr: addrPort("10.1.0.7:80")}) })
		all, err := p.Totals(t.Context(), everyFrontend)
		if _, ok := all[key]; err != nil || !ok || len(all) != 1 {
			t.Errorf("%v, %v", all, err)
		}
		if one, found, err := p.Breakdown(t.Context(), key); err != nil || !found || len(one.Endpoints) != 1 {
			t.Errorf("%+v, %v, %v", one, found, err)
		}
		k.alter(func() { k.unload() })
		if _, err := p.Totals(t.Context(), everyFrontend); err == nil {
			t.Error("figures without the module")
		}
		k.alter(func() { k.reload() })
	}
}

// Totals of all frontends cost one dump and one read of the table, and those of one frontend two queries, regardless of the
// number of frontends. A long read doesn't delay changes and drains.
func TestStatisticsCostTheSame(t *testing.T) {
	k := newFakeKernel()
	p := k.target(t)
	var all []*vip.Frontend
	queries := func() (n int) {
		n = strings.Count(strings.Join(k.trace, "\n"), "ipvs query")
		k.trace = nil
		return n
	}
	for _, n := range []int{10, 200} {
		for len(all) < n {
			f := listener(fmt.Sprintf("10.96.1.%d:80", len(all)+1), vip.TCP, "10.1.0.1:80", "10.1.0.2:80")
			put(t, p, updateOf{Key: f.Key, New: f})
			all = append(all, f)
		}
		queries()
		before := p.target.Stats().TablesRead
		must.Len(t, must.Get(p.Totals(t.Context(), everyFrontend))(t), n)
		expect.Equal(t, queries(), 1, "queries of totals of %d", n)
		expect.Equal(t, p.target.Stats().TablesRead-before, 1, "tables read for %d", n)
		one, _, err := p.Breakdown(t.Context(), all[5].Key)
		must.Succeed(t, err)
		expect.Len(t, one.Endpoints, 2)
		expect.Equal(t, queries(), 2, "queries of one of %d", n)
	}
	p.target.statsReader.mu.Lock() // as during a read
	defer p.target.statsReader.mu.Unlock()
	put(t, p, updateOf{Key: all[0].Key, Old: all[0], New: listener("10.96.1.1:80", vip.TCP, "10.1.0.1:80*9", "10.1.0.2:80")})
	must.Get(p.Connections(t.Context(), all[0].Key))(t)
}
