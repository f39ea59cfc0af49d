package zone

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// settings are those of most tests.
func settings() Settings {
	return Settings{
		Domain: "vip.internal", TTL: 30 * time.Second, NegativeTTL: time.Second, ShortNames: true, Reverse: true,
		Pools:   []netip.Prefix{netip.MustParsePrefix("10.64.16.0/20"), netip.MustParsePrefix("2001:db8:1::/64")},
		Servers: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")},
	}
}

// world is a zone, and the conflicts that it reported.
type world struct {
	testing.TB
	*Zone
	conflicts map[ConflictKey]Conflict
}

func newWorld(t testing.TB, change ...func(*Settings)) *world {
	s := settings()
	for _, f := range change {
		f(&s)
	}
	z := must.Get(New(s))(t)
	z.SetSynced()
	return &world{t, z, make(map[ConflictKey]Conflict)}
}

func key(s string) vip.ServiceKey {
	k, err := vip.ParseServiceKey(s)
	if err != nil {
		panic(err)
	}
	return k
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// set adds or changes services.
func (w *world) set(services ...Service) {
	var changes []Change
	for _, s := range services {
		changes = append(changes, Change{Service: s})
	}
	w.report(w.Apply(1, changes))
}

func (w *world) remove(name string) {
	w.report(w.Apply(1, []Change{{Service: Service{Key: key(name)}, Gone: true}}))
}

func (w *world) report(changes []ConflictChange) {
	for _, c := range changes {
		if c.Gone {
			delete(w.conflicts, c.ConflictKey)
		} else {
			w.conflicts[c.ConflictKey] = c.Conflict
		}
	}
}

// ask asks with the oracle, by TCP.
func (z *Zone) ask(t testing.TB, name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	query := must.Get(m.Pack())(t)
	reply, outcome := z.Answer(query, true)
	var r dns.Msg
	must.Succeed(t, r.Unpack(reply), "%s %s: reply %x", name, dns.TypeToString[qtype], reply)
	if r.Id != m.Id || len(r.Question) == 1 && r.Question[0] != m.Question[0] || !r.Response || outcome != (Outcome{qtype, r.Rcode}) {
		t.Fatalf("%s %s: reply %v, outcome %v", name, dns.TypeToString[qtype], &r, outcome)
	}
	if code := r.Rcode; r.Authoritative != (code == dns.RcodeSuccess || code == dns.RcodeNameError) {
		t.Fatalf("%s %s: authoritative %v with %s", name, dns.TypeToString[qtype], r.Authoritative, dns.RcodeToString[code])
	}
	return &r
}

// answer asks and returns the answer as one line: the code if it is not NOERROR, the data of each
// record, and the owner of the SOA record if there is one.
func (z *Zone) answer(t testing.TB, name string, qtype uint16) string {
	r := z.ask(t, name, qtype)
	var parts []string
	if r.Rcode != dns.RcodeSuccess {
		parts = append(parts, dns.RcodeToString[r.Rcode])
	}
	for _, rr := range r.Answer {
		parts = append(parts, data(rr))
	}
	for _, rr := range r.Ns {
		parts = append(parts, "soa:"+rr.Header().Name)
		if soa, ok := rr.(*dns.SOA); !ok || soa.Hdr.Ttl != 1 || soa.Minttl != 1 {
			t.Errorf("%s: authority %v", name, rr)
		}
	}
	if len(r.Answer) == 0 && len(r.Ns) == 0 && r.Rcode == dns.RcodeSuccess {
		parts = append(parts, "nothing at all")
	}
	return strings.Join(parts, ", ")
}

// data returns the data of a record.
func data(rr dns.RR) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(rr.String(), rr.Header().String())), " ")
}

// svc returns a service without ports.
func svc(name string, since int, vips ...string) Service {
	return Service{Key: key(name), VIPs: addrs(vips...), Since: vip.Instant(since)}
}

func (s Service) with(hostnames ...string) Service {
	s.Hostnames = hostnames
	return s
}

func (s Service) ports(ports ...string) Service {
	for _, p := range ports {
		var port vip.Port
		if _, err := fmt.Sscanf(p, "%d", &port.Port); err != nil {
			panic(err)
		}
		_, rest, _ := strings.Cut(p, "/")
		protocol, name, _ := strings.Cut(rest, "/")
		port.Protocol = map[string]vip.Protocol{"tcp": vip.TCP, "udp": vip.UDP, "sctp": vip.SCTP}[protocol]
		port.Name = name
		if name == "" {
			port.Name = p
		}
		s.Ports = append(s.Ports, port)
	}
	return s
}

// check asks rows of "name type: answer".
func (w *world) check(rows ...string) {
	w.Helper()
	for _, row := range rows {
		question, want, _ := strings.Cut(row, ": ")
		name, qtype, _ := strings.Cut(question, " ")
		expect.Equal(w, w.answer(w, name, dns.StringToType[qtype]), want, "%s", question)
	}
}

// checkConflicts compares the claims that services don't have, as "name service winner", with
// "undecided" after it if they are.
func (w *world) checkConflicts(want ...string) {
	w.Helper()
	var got []string
	for _, c := range w.conflicts {
		text := fmt.Sprintf("%s %s %s", c.Name, c.Service, c.Winner)
		if c.Undecided {
			text += " undecided"
		}
		got = append(got, strings.TrimSpace(text))
	}
	slices.Sort(got)
	slices.Sort(want)
	expect.SameList(w, got, want, "conflicts")
}
