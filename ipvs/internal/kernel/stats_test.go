package kernel

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kerneltest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func captured(t testing.TB, s string) []byte {
	t.Helper()
	b := must.Get(hex.DecodeString(s))(t)
	return b
}

func TestDecodeCapturedStatistics(t *testing.T) {
	for _, c := range []struct {
		data string
		id   ServiceID
		want reconcile.Traffic
	}{
		{kerneltest.TCP, ServiceID{at: netip.MustParseAddrPort("10.96.0.1:80"), protocol: vip.TCP}, kerneltest.WantTCP},
		{kerneltest.UDP6, ServiceID{at: netip.MustParseAddrPort("[fd96::1]:53"), protocol: vip.UDP}, kerneltest.WantUDP6},
		{kerneltest.Mark, ServiceID{mark: 5}, reconcile.Traffic{}},
	} {
		s, got, err := DecodeService(captured(t, c.data))
		if err != nil || IDOf(&s) != c.id || got != c.want {
			t.Errorf("%+v: %+v, %v, want %+v of %+v", IDOf(&s), got, err, c.want, c.id)
		}
	}
	d, err := DecodeDest(captured(t, kerneltest.Dest), netip.MustParseAddr("10.96.0.1"))
	want := DestStatus{Dest: Dest{Addr: netip.MustParseAddrPort("10.77.1.2:8080"), Weight: 1}, Active: 1, Inactive: 2, Traffic: kerneltest.WantDest}
	if err != nil || d != want {
		t.Errorf("%+v, %v, want %+v", d, err, want)
	}
}

// Counters beyond 32 bits are read completely, and unknown counters are ignored.
func TestStatisticsAreWide(t *testing.T) {
	b := netlink.AppendAttr(nil, 0, 1, 2, 3, 4, 5, 6, 7, 8)
	b = netlink.AppendAttr(b, statsInBytes, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	b = netlink.AppendAttr(b, 11) // the kernel may send padding
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
	got := must.Get(ParseTable(strings.NewReader(kerneltest.Table)))(t)
	want := map[ServiceID]Live{
		{at: netip.MustParseAddrPort("[fd96::1]:53"), protocol: vip.UDP}: {0, 5},
		{at: netip.MustParseAddrPort("10.96.0.1:99"), protocol: vip.UDP}: {},
		{at: netip.MustParseAddrPort("10.96.0.1:80"), protocol: vip.TCP}: {1, 5},
		{at: netip.MustParseAddrPort("10.96.0.9:80"), protocol: vip.TCP}: {},
		{mark: 5}: {},
	}
	same := cmp.Options{cmp.AllowUnexported(ServiceID{}, Live{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}
	expect.NoDiff(t, cmp.Diff(want, got, same))

	heading := strings.Join(strings.SplitAfter(kerneltest.Table, "\n")[:3], "")
	web := "TCP  0A600001:0050 wrr  \n"
	cases := []struct {
		name, lines string
		want        map[ServiceID]Live // nil: an error
	}{
		{"empty", "", map[ServiceID]Live{}},
		{"a service that comes twice", web + "  -> 0A4D0202:1F90      Masq    1      7          3         \n" + web +
			"  -> 0A4D0202:1F90      Masq    1      8          2         \n", map[ServiceID]Live{{at: netip.MustParseAddrPort("10.96.0.1:80"), protocol: vip.TCP}: {8, 2}}},
		{"a protocol that isn't ours, with destinations", "AH   0A600001:0000 rr  \n  -> 0A4D0202:0000      Masq    1      7          3         \n", map[ServiceID]Live{}},
		{"sctp, a wide weight and a negative counter", "SCTP  0A600001:0050 wrr  \n  -> 0A4D0202:1F90      Tunnel  65535  -1         3         \n",
			map[ServiceID]Live{{at: netip.MustParseAddrPort("10.96.0.1:80"), protocol: vip.SCTP}: {0, 3}}},
		{"no port", "TCP  0A600001 wrr  \n", nil},
		{"a short address", "TCP  0A6001:0050 wrr  \n", nil},
		{"no hex", "TCP  0A60000G:0050 wrr  \n", nil},
		{"a zone", "TCP  [fe80::1%eth0]:0050 wrr  \n", nil},
		{"a mark of 33 bits", "FWM  100000005 wrr  \n", nil},
		{"a destination cut short", web + "  -> 0A4D0202:1F90      Masq    1      7\n", nil},
		{"no number", web + "  -> 0A4D0202:1F90      Masq    1      7          x         \n", nil},
	}
	for _, c := range cases {
		got, err := ParseTable(strings.NewReader(heading + c.lines))
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
func showTable(b *bytes.Buffer, id ServiceID, dests []Live) {
	switch {
	case id.mark != 0:
		fmt.Fprintf(b, "FWM  %08X rr \n", id.mark)
	case id.at.Addr().Is4():
		fmt.Fprintf(b, "%s  %X:%04X wrr  \n", strings.ToUpper(id.protocol.String()), id.at.Addr().AsSlice(), id.at.Port())
	default:
		fmt.Fprintf(b, "%s  [%s]:%04X wrr \n", strings.ToUpper(id.protocol.String()), id.at.Addr().StringExpanded(), id.at.Port())
	}
	for i, o := range dests {
		fmt.Fprintf(b, "  -> %08X:1F90      %-7s %-6d %-10d %-10d\n", i, "Masq", i, o.Active, o.Inactive)
	}
}

func TestTableRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := map[ServiceID]Live{}
		b := bytes.NewBufferString(strings.Repeat("heading\n", 3))
		for range rapid.IntRange(0, 20).Draw(t, "services") {
			id := ServiceID{mark: rapid.Uint32().Draw(t, "mark")}
			if rapid.Bool().Draw(t, "by address") || id.mark == 0 {
				id = ServiceID{at: netip.AddrPortFrom(drawAddr(t, rapid.Bool().Draw(t, "v4")), rapid.Uint16().Draw(t, "port")),
					protocol: rapid.SampledFrom([]vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}).Draw(t, "protocol")}
			}
			var dests []Live
			sum := Live{}
			for range rapid.IntRange(0, 5).Draw(t, "destinations") {
				o := Live{uint64(rapid.Int32Min(0).Draw(t, "active")), uint64(rapid.Int32Min(0).Draw(t, "inactive"))}
				dests, sum = append(dests, o), Live{sum.Active + o.Active, sum.Inactive + o.Inactive}
			}
			showTable(b, id, dests)
			want[id] = sum
		}
		text := b.String()
		got, err := ParseTable(b)
		if d := cmp.Diff(want, got, cmp.AllowUnexported(ServiceID{}, Live{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); err != nil || d != "" {
			t.Fatalf("%v, -want +got:\n%s\nof\n%s", err, d, text)
		}
	})
}

func FuzzParseTable(f *testing.F) {
	f.Add(kerneltest.Table)
	f.Add("\n\n\nTCP  0A600001:0050 wrr\n  -> 0:0 M 1 9223372036854775807 9223372036854775807\n  -> 0:0 M 1 1 2\n")
	f.Add("\n\n\n  -> 0:0 M 1 1 2\nFWM  ffffffff\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ParseTable(strings.NewReader(text))
		if err != nil && all != nil {
			t.Error("a table beside an error")
		}
		for id := range all {
			if id.mark == 0 && id != (ServiceID{}) && id.protocol != 0 && !id.at.Addr().IsValid() {
				t.Errorf("a service without an address: %+v", id)
			}
		}
	})
}

func FuzzDecodeStats(f *testing.F) {
	for _, s := range []string{kerneltest.TCP, kerneltest.UDP6, kerneltest.Mark, kerneltest.Dest} {
		f.Add(captured(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := DecodeService(b); err != nil && !errors.Is(err, netlink.ErrMalformed) {
			t.Errorf("%v", err)
		}
		if _, err := decodeStats(b); err != nil && !errors.Is(err, netlink.ErrMalformed) {
			t.Errorf("%v", err)
		}
	})
}
