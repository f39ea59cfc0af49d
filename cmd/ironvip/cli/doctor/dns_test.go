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
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

// answering serves a zone with the service "web" on a free port of loopback, by the transports.
func answering(t *testing.T, domain string, transports string) netip.AddrPort {
	t.Helper()
	z, err := zone.New(zone.Settings{Domain: domain, TTL: 30 * time.Second, NegativeTTL: time.Second, ShortNames: true})
	if err != nil {
		t.Fatal(err)
	}
	z.Apply(1, []zone.Change{{Service: zone.Service{Key: vip.ServiceKey{Namespace: "default", Name: "web"}, VIPs: []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}}}})
	z.SetSynced()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go answerStream(z, conn)
			}
		}()
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func TestDNS(t *testing.T) {
	ours, other, silent, udp, none := answering(t, "vip.internal", "udp tcp"), answering(t, "other.internal", "udp tcp"), answering(t, "vip.internal", ""), answering(t, "vip.internal", "udp"), free(t)
	this := ThisHost(false)
	for name, c := range map[string]struct {
		listen []netip.AddrPort
		agent  []netip.AddrPort
		want   string // level, text and fix; "": nothing
	}{
		"off":                      {nil, nil, ""},
		"an agent that fails":      {[]netip.AddrPort{silent}, []netip.AddrPort{silent}, fmt.Sprintf("warn dns: %s does not answer for vip.internal by udp: ", silent)},
		"answers":                  {[]netip.AddrPort{ours}, nil, fmt.Sprintf("ok dns: %s answers for vip.internal by UDP and TCP ", ours)},
		"another program":          {[]netip.AddrPort{other}, []netip.AddrPort{ours}, fmt.Sprintf("fail dns: %s does not answer for vip.internal by udp: ", other)},
		"something without answer": {[]netip.AddrPort{silent}, nil, fmt.Sprintf("fail dns: %s does not answer for vip.internal by udp: ", silent)},
		"tcp without answer":       {[]netip.AddrPort{udp}, nil, fmt.Sprintf("fail dns: %s does not answer for vip.internal by tcp: ", udp)},
		"nothing":                  {[]netip.AddrPort{none}, nil, fmt.Sprintf("warn dns: %s does not answer for vip.internal by udp: ", none)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := want
			w.DNS = DNS{Domain: "vip.internal", Listen: c.listen, Agent: c.agent}
			h := host(nil)
			h.Query, h.Bind = this.Query, this.Bind
			found := only(Examine(h, w), "dns")
			var text []string
			for _, f := range found {
				text = append(text, fmt.Sprintf("%s %s %s", f.Level, f.Text, f.Fix))
			}
			if got := strings.Join(text, "; "); got != c.want && (c.want == "" || len(found) != 1 || !strings.HasPrefix(got, c.want)) {
				t.Errorf("%s, want %s", got, c.want)
			} else if strings.HasPrefix(got, "fail") && !strings.Contains(got, "the port is in use find the program and stop it, or change dns.listen: ss -lp 'sport = :") {
				t.Errorf("%s does not say what to do", got)
			}
		})
	}
}

// Servers that don't answer cost one timeout together.
func TestSilentServersTakeOneSecond(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, h := want, Host{Query: func(string, netip.AddrPort, string, uint16) ([]string, error) {
			time.Sleep(queryTimeout)
			return nil, io.EOF
		}}
		w.DNS.Listen = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53"), netip.MustParseAddrPort("127.0.0.2:53"), netip.MustParseAddrPort("[::1]:53")}
		began := time.Now()
		if found := dnsServers(h, w); len(found) != len(w.DNS.Listen) || !strings.Contains(found[2].Text, "[::1]:53") || time.Since(began) > time.Second {
			t.Errorf("%+v after %v", found, time.Since(began))
		}
	})
}

func TestLookup(t *testing.T) {
	server := answering(t, "vip.internal", "udp tcp")
	h := Host{Query: ThisHost(false).Query}
	w := Want{DNS: DNS{Domain: "vip.internal", Listen: []netip.AddrPort{server}}}
	both := []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}
	for _, c := range []struct {
		name Name
		want string
	}{
		{Name{"web.vip.internal", both}, "ok dns: web.vip.internal is 192.0.2.10, 2001:db8::10"},
		{Name{"web.default.svc.vip.internal", both[1:]}, "ok dns: web.default.svc.vip.internal is 2001:db8::10"},
		{Name{"web.vip.internal", []netip.Addr{netip.MustParseAddr("192.0.2.11")}}, fmt.Sprintf("fail dns: web.vip.internal at %s by udp is 192.0.2.10, want 192.0.2.11", server)},
		{Name{"none.vip.internal", both}, fmt.Sprintf("fail dns: lookup of none.vip.internal at %s by udp failed: NXDOMAIN", server)},
	} {
		found := Lookup(h, w, c.name)
		if len(found) != 1 || fmt.Sprintf("%s %s", found[0].Level, found[0].Text) != c.want || (found[0].Level == Fail) != (found[0].Fix != "") {
			t.Errorf("%+v, want %s", found, c.want)
		}
	}
}
