package ipvs

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// What a 6.1 kernel sent of a TCP and a UDP service and of a destination after
// some traffic, and its table at that moment.
const (
	capturedTCP = "010100002c01010006000100020000000600020006000000140003000a600001000000000000000000000000060004000050000008000600777272000c000700" +
		"02000000ffffffff080008000000000008000900ffffffff5c000a000800010006000000080002002200000008000300170000000c00040024070000000000000c000500" +
		"720500000000000008000600010000000800070003000000080008000200000008000900ab00000008000a00830000007c000c000c00010006000000000000000c000200" +
		"22000000000000000c00030017000000000000000c00040024070000000000000c00050072050000000000000c00060001000000000000000c00070003000000000000" +
		"000c00080002000000000000000c000900ab000000000000000c000a008300000000000000"
	capturedUDP6 = "010100002c010100060001000a000000060002001100000014000300fd960000000000000000000000000001060004000035000008000600777272000c000700" +
		"02000000ffffffff080008000000000008000900800000005c000a000800010005000000080002000500000008000300050000000c000400fa000000000000000c000500" +
		"7701000000000000080006000000000008000700000000000800080000000000080009001700000008000a00230000007c000c000c00010005000000000000000c000200" +
		"05000000000000000c00030005000000000000000c000400fa000000000000000c00050077010000000000000c00060000000000000000000c00070000000000000000" +
		"000c00080000000000000000000c00090017000000000000000c000a002300000000000000"
	capturedMark = "01010000100101000600010002000000080005000500000007000600727200000c00070002000000ffffffff080008000000000008000900ffffffff5c000a00" +
		"0800010000000000080002000000000008000300000000000c00040000000000000000000c000500000000000000000008000600000000000800070000000000080008" +
		"0000000000080009000000000008000a00000000007c000c000c00010000000000000000000c00020000000000000000000c00030000000000000000000c0004000000" +
		"0000000000000c00050000000000000000000c00060000000000000000000c00070000000000000000000c00080000000000000000000c00090000000000000000000c00" +
		"0a000000000000000000"
	capturedDest = "0501000050010200140001000a4d0102000000000000000000000000060002001f9000000800030000000000080004000100000005000d000000000006000e00" +
		"0000000006000f00000000000800050000000000080006000000000008000700010000000800080002000000080009000000000006000b00020000005c000a0008000100" +
		"030000000800020010000000080003000b0000000c0004005e030000000000000c0005009f02000000000000080006000000000008000700010000000800080001000000" +
		"080009005100000008000a003f0000007c000c000c00010003000000000000000c00020010000000000000000c0003000b000000000000000c0004005e03000000000000" +
		"0c0005009f020000000000000c00060000000000000000000c00070001000000000000000c00080001000000000000000c00090051000000000000000c000a003f000000" +
		"00000000"
	capturedTable = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
UDP  [fd96:0000:0000:0000:0000:0000:0000:0001]:0035 wrr 
  -> [fd77:0002:0000:0000:0000:0000:0000:0002]:1F90      Masq    1      0          3         
  -> [fd77:0001:0000:0000:0000:0000:0000:0002]:1F90      Masq    1      0          2         
UDP  0A600001:0063 sh ops  
TCP  0A600001:0050 wrr  
  -> 0A4D0202:1F90      Masq    1      0          3         
  -> 0A4D0102:1F90      Masq    1      1          2         
TCP  0A600009:0050 wrr  persistent 19250 FFFFFF00
FWM  00000005 rr 
  -> 0A4D0102:0050      Masq    3      0          0         
`
)

func captured(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func addrPortKey(at string, p vip.Protocol) vip.FrontendKey { return frontendKey(addrPort(at), p) }

func frontendKey(at netip.AddrPort, p vip.Protocol) vip.FrontendKey {
	return vip.FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: p}
}

var (
	trafficTCP = reconcile.Traffic{Connections: 6, In: reconcile.Volume{Packets: 34, Bytes: 1828}, Out: reconcile.Volume{Packets: 23, Bytes: 1394},
		Rates: reconcile.Rates{Connections: 1, In: reconcile.Volume{Packets: 3, Bytes: 171}, Out: reconcile.Volume{Packets: 2, Bytes: 131}}}
	trafficUDP6 = reconcile.Traffic{Connections: 5, In: reconcile.Volume{Packets: 5, Bytes: 250}, Out: reconcile.Volume{Packets: 5, Bytes: 375},
		Rates: reconcile.Rates{In: reconcile.Volume{Bytes: 23}, Out: reconcile.Volume{Bytes: 35}}}
	trafficDest = reconcile.Traffic{Connections: 3, In: reconcile.Volume{Packets: 16, Bytes: 862}, Out: reconcile.Volume{Packets: 11, Bytes: 671},
		Rates: reconcile.Rates{In: reconcile.Volume{Packets: 1, Bytes: 81}, Out: reconcile.Volume{Packets: 1, Bytes: 63}}}
)

func TestDecodeCapturedStatistics(t *testing.T) {
	for _, c := range []struct {
		data string
		id   serviceID
		want reconcile.Traffic
	}{
		{capturedTCP, serviceID{at: addrPort("10.96.0.1:80"), protocol: vip.TCP}, trafficTCP},
		{capturedUDP6, serviceID{at: addrPort("[fd96::1]:53"), protocol: vip.UDP}, trafficUDP6},
		{capturedMark, serviceID{mark: 5}, reconcile.Traffic{}},
	} {
		s, got, err := decodeServiceStats(captured(t, c.data))
		if err != nil || s.id() != c.id || got != c.want {
			t.Errorf("%+v: %+v, %v, want %+v of %+v", s.id(), got, err, c.want, c.id)
		}
	}
	d, err := decodeDestStatus(captured(t, capturedDest), netip.MustParseAddr("10.96.0.1"))
	want := destStatus{dest: dest{addr: addrPort("10.77.1.2:8080"), weight: 1}, active: 1, inactive: 2, traffic: trafficDest}
	if err != nil || d != want {
		t.Errorf("%+v, %v, want %+v", d, err, want)
	}
}

// Counters beyond 32 bits are read whole, and those that nobody knows yet are
// passed over.
func TestStatisticsAreWide(t *testing.T) {
	b := netlink.AppendAttr(nil, 0, 1, 2, 3, 4, 5, 6, 7, 8)
	b = netlink.AppendAttr(b, statsInBytes, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	b = netlink.AppendAttr(b, 11) // padding, as the kernel may send it
	b = netlink.AppendAttr(b, 200, 1, 2, 3, 4, 5, 6, 7, 8)
	got, err := decodeStats(b)
	if want := (reconcile.Traffic{In: reconcile.Volume{Bytes: math.MaxUint64}}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := decodeStats(netlink.AppendAttr(nil, statsConns, 1, 2, 3, 4)); !errors.Is(err, netlink.ErrMalformed) {
		t.Errorf("a counter of 32 bits: %v", err)
	}
}

func TestParseTable(t *testing.T) {
	got, err := parseTable(strings.NewReader(capturedTable))
	if err != nil {
		t.Fatal(err)
	}
	want := map[serviceID]live{
		{at: addrPort("[fd96::1]:53"), protocol: vip.UDP}: {0, 5},
		{at: addrPort("10.96.0.1:99"), protocol: vip.UDP}: {},
		{at: addrPort("10.96.0.1:80"), protocol: vip.TCP}: {1, 5},
		{at: addrPort("10.96.0.9:80"), protocol: vip.TCP}: {},
		{mark: 5}: {},
	}
	same := cmp.Options{cmp.AllowUnexported(serviceID{}, live{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}
	if d := cmp.Diff(want, got, same); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}

	heading := strings.Join(strings.SplitAfter(capturedTable, "\n")[:3], "")
	web := "TCP  0A600001:0050 wrr  \n"
	cases := []struct {
		name, lines string
		want        map[serviceID]live // nil: an error
	}{
		{"empty", "", map[serviceID]live{}},
		{"a service that comes twice", web + "  -> 0A4D0202:1F90      Masq    1      7          3         \n" + web +
			"  -> 0A4D0202:1F90      Masq    1      8          2         \n", map[serviceID]live{{at: addrPort("10.96.0.1:80"), protocol: vip.TCP}: {8, 2}}},
		{"a protocol that isn't ours, with destinations", "AH   0A600001:0000 rr  \n  -> 0A4D0202:0000      Masq    1      7          3         \n", map[serviceID]live{}},
		{"sctp, a wide weight and a negative counter", "SCTP  0A600001:0050 wrr  \n  -> 0A4D0202:1F90      Tunnel  65535  -1         3         \n",
			map[serviceID]live{{at: addrPort("10.96.0.1:80"), protocol: vip.SCTP}: {0, 3}}},
		{"no port", "TCP  0A600001 wrr  \n", nil},
		{"a short address", "TCP  0A6001:0050 wrr  \n", nil},
		{"no hex", "TCP  0A60000G:0050 wrr  \n", nil},
		{"a zone", "TCP  [fe80::1%eth0]:0050 wrr  \n", nil},
		{"a mark of 33 bits", "FWM  100000005 wrr  \n", nil},
		{"a destination cut short", web + "  -> 0A4D0202:1F90      Masq    1      7\n", nil},
		{"no number", web + "  -> 0A4D0202:1F90      Masq    1      7          x         \n", nil},
	}
	for _, c := range cases {
		got, err := parseTable(strings.NewReader(heading + c.lines))
		if c.want == nil {
			if err == nil || !strings.Contains(err.Error(), "line ") {
				t.Errorf("%s: %v, %v, want an error that names the line", c.name, got, err)
			}
			continue
		}
		if d := cmp.Diff(c.want, got, same); err != nil || d != "" {
			t.Errorf("%s: %v, -want +got:\n%s", c.name, err, d)
		}
	}
}

// showTable writes a table as the kernel does.
func showTable(b *bytes.Buffer, id serviceID, dests []live) {
	switch {
	case id.mark != 0:
		fmt.Fprintf(b, "FWM  %08X rr \n", id.mark)
	case id.at.Addr().Is4():
		fmt.Fprintf(b, "%s  %X:%04X wrr  \n", strings.ToUpper(id.protocol.String()), id.at.Addr().AsSlice(), id.at.Port())
	default:
		fmt.Fprintf(b, "%s  [%s]:%04X wrr \n", strings.ToUpper(id.protocol.String()), id.at.Addr().StringExpanded(), id.at.Port())
	}
	for i, o := range dests {
		fmt.Fprintf(b, "  -> %08X:1F90      %-7s %-6d %-10d %-10d\n", i, "Masq", i, o.active, o.inactive)
	}
}

func TestTableRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := map[serviceID]live{}
		b := bytes.NewBufferString(strings.Repeat("heading\n", 3))
		for range rapid.IntRange(0, 20).Draw(t, "services") {
			id := serviceID{mark: rapid.Uint32().Draw(t, "mark")}
			if rapid.Bool().Draw(t, "by address") || id.mark == 0 {
				id = serviceID{at: netip.AddrPortFrom(drawAddr(t, rapid.Bool().Draw(t, "v4")), rapid.Uint16().Draw(t, "port")),
					protocol: rapid.SampledFrom([]vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}).Draw(t, "protocol")}
			}
			var dests []live
			sum := live{}
			for range rapid.IntRange(0, 5).Draw(t, "destinations") {
				o := live{uint64(rapid.Int32Min(0).Draw(t, "active")), uint64(rapid.Int32Min(0).Draw(t, "inactive"))}
				dests, sum = append(dests, o), live{sum.active + o.active, sum.inactive + o.inactive}
			}
			showTable(b, id, dests)
			want[id] = sum
		}
		text := b.String()
		got, err := parseTable(b)
		if d := cmp.Diff(want, got, cmp.AllowUnexported(serviceID{}, live{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); err != nil || d != "" {
			t.Fatalf("%v, -want +got:\n%s\nof\n%s", err, d, text)
		}
	})
}

func FuzzParseTable(f *testing.F) {
	f.Add(capturedTable)
	f.Add("\n\n\nTCP  0A600001:0050 wrr\n  -> 0:0 M 1 9223372036854775807 9223372036854775807\n  -> 0:0 M 1 1 2\n")
	f.Add("\n\n\n  -> 0:0 M 1 1 2\nFWM  ffffffff\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseTable(strings.NewReader(text))
		if err != nil && all != nil {
			t.Error("a table beside an error")
		}
		for id := range all {
			if id.mark == 0 && id != (serviceID{}) && id.protocol != 0 && !id.at.Addr().IsValid() {
				t.Errorf("a service without an address: %+v", id)
			}
		}
	})
}

func FuzzDecodeStats(f *testing.F) {
	for _, s := range []string{capturedTCP, capturedUDP6, capturedMark, capturedDest} {
		f.Add(captured(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, _, err := decodeServiceStats(b); err == nil {
			plain, err := decodeService(b)
			if err != nil || plain != s {
				t.Errorf("with statistics %+v, without %+v, %v", s, plain, err)
			}
		}
		if _, err := decodeStats(b); err != nil && !errors.Is(err, netlink.ErrMalformed) {
			t.Errorf("%v", err)
		}
	})
}

// A table that can't be read any more is opened anew; one that isn't there is
// an error each time, until it is.
func TestTableIsOpenedAnew(t *testing.T) {
	table := openTable{path: filepath.Join(t.TempDir(), "ip_vs")}
	defer table.close()
	if _, err := table.read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no table: %v", err)
	}
	if err := os.WriteFile(table.path, []byte(capturedTable), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // from the beginning each time
		if all, err := table.read(); err != nil || len(all) != 5 {
			t.Errorf("%d services, %v", len(all), err)
		}
	}
	table.file.Close()
	if all, err := table.read(); err != nil || len(all) != 5 {
		t.Errorf("after the file was lost: %d services, %v", len(all), err)
	}
}

// cannedIPVS is a socket to a kernel that answers as it once did.
type cannedIPVS struct {
	messenger
	all   []string            // to a dump of services
	one   map[string]string   // to a question about one, by what asks
	dests map[string][]string // likewise

	questions *int // counts them, if not nil
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
	if data[0] == cmdGetDest || h.Flags&unix.NLM_F_DUMP == 0 {
		s, err := decodeService(data)
		if err != nil {
			return err
		}
		asked := fmt.Sprintf("%s mark %d", s.key, s.fwmark)
		if answers = c.dests[asked]; data[0] == cmdGetService {
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

// text is the kernel's table.
type tableText string

func (s tableText) read() (map[serviceID]live, error) {
	return parseTable(strings.NewReader(string(s)))
}
func (tableText) close() {}

// everyFrontend is for Totals of all that the dataplane has.
func everyFrontend(vip.FrontendKey) bool { return true }

// What was captured becomes figures of frontends. Connections of UDP, which the
// kernel all calls inactive, are active; a service by mark is nobody's, and the
// destinations of one that the table doesn't have are asked for.
func TestTotalsAndBreakdown(t *testing.T) {
	tcp, udp := addrPortKey("10.96.0.1:80", vip.TCP), addrPortKey("[fd96::1]:53", vip.UDP)
	canned := cannedIPVS{
		all:   []string{capturedUDP6, capturedTCP, capturedMark},
		one:   map[string]string{"10.96.0.1:80/tcp mark 0": capturedTCP, "[fd96::1]:53/udp mark 0": capturedUDP6},
		dests: map[string][]string{"10.96.0.1:80/tcp mark 0": {capturedDest}, "[fd96::1]:53/udp mark 0": {capturedDest}},
	}
	with := func(t reconcile.Traffic, active, inactive uint64) reconcile.Traffic {
		t.Active, t.Inactive = active, inactive
		return t
	}
	p := Target{meter: &meter{stats: &counters{}, kernel: &kernel{conn: canned}, conns: tableText(capturedTable)}}
	same := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}
	all, err := p.Totals(t.Context(), everyFrontend)
	want := map[vip.FrontendKey]reconcile.Traffic{tcp: with(trafficTCP, 1, 5), udp: with(trafficUDP6, 5, 0)}
	if d := cmp.Diff(want, all, same); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
	for key, want := range map[vip.FrontendKey]reconcile.Breakdown{
		tcp: {Traffic: with(trafficTCP, 1, 2), Endpoints: map[netip.AddrPort]reconcile.Traffic{addrPort("10.77.1.2:8080"): with(trafficDest, 1, 2)}},
		udp: {Traffic: with(trafficUDP6, 3, 0), Endpoints: map[netip.AddrPort]reconcile.Traffic{addrPort("10.77.1.2:8080"): with(trafficDest, 3, 0)}},
	} {
		got, found, err := p.Breakdown(t.Context(), key)
		if d := cmp.Diff(want, got, same); err != nil || !found || d != "" {
			t.Errorf("%s: found %v, %v, -want +got:\n%s", key, found, err, d)
		}
	}
	if _, found, err := p.Breakdown(t.Context(), addrPortKey("10.96.0.9:80", vip.TCP)); err != nil || found {
		t.Errorf("what isn't there: %v, %v", found, err)
	}
	p.meter.conns = tableText("\n\n\n" + "TCP  0A600001:0050 wrr  \n")
	all, err = p.Totals(t.Context(), everyFrontend)
	want = map[vip.FrontendKey]reconcile.Traffic{tcp: with(trafficTCP, 0, 0), udp: with(trafficUDP6, 3, 0)}
	if d := cmp.Diff(want, all, same); err != nil || d != "" {
		t.Errorf("with a table of one service: %v, -want +got:\n%s", err, d)
	}
	canned.questions = new(int)
	p.meter.kernel = &kernel{conn: canned}
	all, err = p.Totals(t.Context(), func(k vip.FrontendKey) bool { return k == tcp })
	want = map[vip.FrontendKey]reconcile.Traffic{tcp: with(trafficTCP, 0, 0)}
	if d := cmp.Diff(want, all, same); err != nil || d != "" || *canned.questions != 1 {
		t.Errorf("one of two is asked for, the table lacks the other: %d questions, %v, -want +got:\n%s", *canned.questions, err, d)
	}
	p.meter.conns = tableText("\n\n\n" + "TCP  0A600001\n")
	if all, err := p.Totals(t.Context(), everyFrontend); err == nil || all != nil {
		t.Errorf("with a broken table: %+v, %v", all, err)
	}
}

// fakeConnections is a fakeKernel's table; nothing is connected.
type fakeConnections struct{ k *fakeKernel }

func (f fakeConnections) read() (map[serviceID]live, error) {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	all := map[serviceID]live{}
	for _, s := range f.k.services {
		all[s.id()] = live{}
	}
	return all, nil
}

func (fakeConnections) close() {}

// Statistics go on when the module was taken out and put back.
func TestStatisticsAfterAReload(t *testing.T) {
	k := newFakeKernel()
	stats := &counters{}
	h, err := k.open(t.Context(), stats)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newTarget(Options{Owns: func(netip.Addr) bool { return true }}, h, stats)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	key := addrPortKey("10.96.0.1:80", vip.TCP)
	for range 2 {
		k.alter(func() { k.put(service{key: key, sched: "rr"}, dest{addr: addrPort("10.1.0.7:80")}) })
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

// Reading all of a large table, as a scrape does.
func BenchmarkParseTable5000(b *testing.B) {
	var text bytes.Buffer
	text.WriteString(strings.Repeat("heading\n", 3))
	for i := range 5000 {
		showTable(&text, serviceID{at: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80), protocol: vip.TCP}, make([]live, 10))
	}
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if all, err := parseTable(bytes.NewReader(text.Bytes())); err != nil || len(all) != 5000 {
			b.Fatal(len(all), err)
		}
	}
}
