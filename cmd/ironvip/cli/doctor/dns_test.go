package doctor

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// answering serves a zone with the service "web" on a free port of loopback, by the transports.
func answering(t *testing.T, domain string, transports string) netip.AddrPort {
	t.Helper()
	z, err := zone.New(zone.Settings{Domain: domain, TTL: 30 * time.Second, NegativeTTL: time.Second, ShortNames: true})
	must.Succeed(t, err)
	z.Apply(1, []zone.Change{{Service: zone.Service{Key: vip.ServiceKey{Namespace: "default", Name: "web"}, VIPs: []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}}}})
	z.SetSynced()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	at := l.Addr().(*net.TCPAddr).AddrPort()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		l.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); l.Close() })
	if strings.Contains(transports, "udp") {
		go func() {
			for b := make([]byte, 1232); ; {
				n, from, err := c.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				if reply, _ := z.Answer(b[:n], false); len(reply) > 0 {
					_, _ = c.WriteToUDPAddrPort(reply, from)
				}
			}
		}()
	}
	if strings.Contains(transports, "tcp") {
		accept.Each(l, func(conn net.Conn) { answerStream(z, conn) })
	}
	return at
}

func answerStream(z *zone.Zone, conn net.Conn) {
	defer conn.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply, _ := z.Answer(query, true)
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// free returns an address where nothing listens.
func free(t *testing.T) netip.AddrPort {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func TestDNS(t *testing.T) {
	ours, other, silent, udp, none := answering(t, "vip.internal", "udp tcp"), answering(t, "other.internal", "udp tcp"), answering(t, "vip.internal", ""), answering(t, "vip.internal", "udp"), free(t)
	this := ThisHost(false)
	for name, c := range map[string]struct {
		listen []netip.AddrPort
		want   string // level, text and fix; "": nothing
	}{
		"off":                {nil, ""},
		"answers":            {[]netip.AddrPort{ours}, fmt.Sprintf("ok dns: %s answers for vip.internal by UDP and TCP ", ours)},
		"another program":    {[]netip.AddrPort{other}, fmt.Sprintf("warn dns: %s does not answer for vip.internal by udp: ", other)},
		"no answer":          {[]netip.AddrPort{silent}, fmt.Sprintf("warn dns: %s does not answer for vip.internal by udp: no answer within 1s ", silent)},
		"tcp without answer": {[]netip.AddrPort{udp}, fmt.Sprintf("warn dns: %s does not answer for vip.internal by tcp: ", udp)},
		"nothing":            {[]netip.AddrPort{none}, fmt.Sprintf("warn dns: %s does not answer for vip.internal by udp: nothing listens there run ironvip status; ss -lp 'sport = :%d'", none, none.Port())},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := want
			w.DNS = DNS{Domain: "vip.internal", Listen: c.listen}
			h := machine(nil)
			h.Query = this.Query
			found := only(Examine(h, w), "dns")
			var text []string
			for _, f := range found {
				text = append(text, fmt.Sprintf("%s %s %s", f.Level, f.Text, f.Fix))
			}
			if got := strings.Join(text, "; "); got != c.want && (c.want == "" || len(found) != 1 || !strings.HasPrefix(got, c.want)) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// Servers that don't answer cost one timeout together.
func TestSilentServersTakeOneSecond(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, h := want, Host{Query: func(string, netip.AddrPort, string) error {
			time.Sleep(queryTimeout)
			return io.EOF
		}}
		w.DNS.Listen = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53"), netip.MustParseAddrPort("127.0.0.2:53"), netip.MustParseAddrPort("[::1]:53")}
		began := time.Now()
		if found := dnsServers(h, w); len(found) != len(w.DNS.Listen) || !strings.Contains(found[2].Text, "[::1]:53") || time.Since(began) > time.Second {
			t.Errorf("%+v after %v", found, time.Since(began))
		}
	})
}
