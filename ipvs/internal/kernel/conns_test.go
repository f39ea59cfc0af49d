package kernel

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

const connsHeading = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n"

// connsText is the list of a kernel 6.1 with one connection of each kind, and one of a protocol that
// IPVS could know later.
const connsText = connsHeading +
	"TCP 0A600102 D2F0 0A600001 0050 0A010007 1F90 ESTABLISHED     898\n" +
	"UDP fd96:0000:0000:0000:0000:0000:0000:0002 9C40 fd96:0000:0000:0000:0000:0000:0000:0001 0035 fd97:0000:0000:0000:0000:0000:0000:0007 0035 UDP             299\n" +
	"TCP 0A600102 0000 0A600001 0050 0A010007 1F90 ASSURED        3598\n" +
	"IP  0A600102 0000 00F00005 0000 0A010007 0000 NONE             59\n" +
	"IP  fd96:0000:0000:0000:0000:0000:0000:0002 0000 00f0:0006:0000:0000:0000:0000:0000:0000 0000 fd97:0000:0000:0000:0000:0000:0000:0007 0000 NONE             59\n" +
	"ESP 0A600102 0000 0A600001 0000 0A010007 0000 ESTABLISHED      10\n" +
	"TCP 0A600102 D2F1 0A600001 13C4 0A010007 13C4 FIN_WAIT        117 sip call-id-7\n"

func parsedConns(text string) (out []Entry, err error) {
	err = ParseConns(context.Background(), strings.NewReader(text), func(e *Entry) bool {
		out = append(out, *e)
		return true
	})
	return out, err
}

func TestParseConns(t *testing.T) {
	at := netip.MustParseAddrPort
	want := []Entry{
		{Protocol: vip.TCP, Client: at("10.96.1.2:54000"), To: at("10.96.0.1:80"), Backend: at("10.1.0.7:8080"), State: "ESTABLISHED", Expires: 898 * time.Second},
		{Protocol: vip.UDP, Client: at("[fd96::2]:40000"), To: at("[fd96::1]:53"), Backend: at("[fd97::7]:53"), State: "UDP", Expires: 299 * time.Second},
		{Protocol: vip.TCP, Client: at("10.96.1.2:0"), To: at("10.96.0.1:80"), Backend: at("10.1.0.7:8080"), State: "ASSURED", Expires: 3598 * time.Second},
		{Mark: 0xf00005, Client: at("10.96.1.2:0"), Backend: at("10.1.0.7:0"), State: "NONE", Expires: 59 * time.Second},
		{Mark: 0xf00006, Client: at("[fd96::2]:0"), Backend: at("[fd97::7]:0"), State: "NONE", Expires: 59 * time.Second},
		{Protocol: vip.TCP, Client: at("10.96.1.2:54001"), To: at("10.96.0.1:5060"), Backend: at("10.1.0.7:5060"), State: "FIN_WAIT", Expires: 117 * time.Second},
	}
	got, err := parsedConns(connsText)
	same := cmp.Options{cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}
	if d := cmp.Diff(want, got, same); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
	for _, broken := range []string{"TCP 0A600102\n", "TCP 0A6001 D2F0 0A600001 0050 0A010007 1F90 NONE 1\n", "TCP 0A600102 XXXX 0A600001 0050 0A010007 1F90 NONE 1\n",
		"TCP 0A600102 D2F0 0A600001 0050 0A010007 1F90 NONE soon\n", "IP  0A600102 0000\n"} {
		if got, err := parsedConns(connsHeading + broken); err == nil {
			t.Errorf("%q: %+v", broken, got)
		}
	}
}

// A reader that has enough, or whose time is over, doesn't read the rest.
func TestParseConnsEnds(t *testing.T) {
	n := 0
	err := ParseConns(t.Context(), strings.NewReader(connsText+"broken\nTCP broken"), func(*Entry) bool { n++; return n < 2 })
	if err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	line := strings.SplitAfter(connsText, "\n")[1]
	err = ParseConns(ctx, strings.NewReader(connsHeading+strings.Repeat(line, 5000)), func(*Entry) bool { return true })
	expect.Is(t, err, context.Canceled, "after the end of the request")
}

func FuzzParseConns(f *testing.F) {
	f.Add(connsText)
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = parsedConns(text)
	})
}
