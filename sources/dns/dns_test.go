package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// recorder is a sink with the calls since the last take.
type recorder struct {
	sync.Mutex
	calls []string
}

func (r *recorder) call(what string, services []vip.Service, problems []vip.Problem) {
	r.Lock()
	defer r.Unlock()
	words := []string{what}
	for _, s := range services {
		words = append(words, s.Key.Name+"="+backendsOf(&s))
	}
	slices.Sort(words[1:])
	for _, p := range problems {
		words = append(words, "| "+p.Error())
	}
	r.calls = append(r.calls, strings.Join(words, " "))
}

func (r *recorder) take() string {
	r.Lock()
	defer r.Unlock()
	out := strings.Join(r.calls, "; ")
	r.calls = nil
	return out
}

func backendsOf(s *vip.Service) string {
	var out []string
	for _, b := range s.Backends {
		text := fmt.Sprint(b.ID(), "*", b.Weight)
		if b.Backup {
			text += "b"
		}
		out = append(out, text)
	}
	return strings.Join(out, ",")
}

func (r *recorder) Replace(s []vip.Service, p []vip.Problem) { r.call("replace", s, p) }
func (r *recorder) Put(s ...vip.Service) []uint64 {
	r.call("put", s, nil)
	return make([]uint64, len(s))
}
func (r *recorder) Delete(...vip.ServiceKey) { panic("the services are those of the configuration") }
func (r *recorder) Problems(p []vip.Problem) { r.call("problems", nil, p) }
func (r *recorder) Stale(err error)          { r.call("stale "+err.Error(), nil, nil) }
func (r *recorder) Fresh()                   { r.call("fresh", nil, nil) }

// zone is a fake server. Its records are by "NAME TYPE", in the form of a zone file.
type zone struct {
	sync.Mutex
	records map[string]string
	lame    bool   // it asks no other server
	broken  string // a question that fails
	slow    string // a question that takes an hour
	rcode   int
	err     error
	asked   map[string]int
}

func (z *zone) set(question, records string) {
	if z.records == nil {
		z.records = map[string]string{}
	}
	z.records[question] = records
}

// change changes or reads the zone while queries may be under way.
func (z *zone) change(do func(z *zone)) {
	z.Lock()
	defer z.Unlock()
	do(z)
}

func (z *zone) exchange(ctx context.Context, q *dns.Msg, _ string) (*dns.Msg, error) {
	z.Lock()
	defer z.Unlock()
	question := q.Question[0].Name + " " + dns.TypeToString[q.Question[0].Qtype]
	if z.slow == question {
		z.Unlock()
		backoff.Sleep(ctx, time.Hour)
		z.Lock()
	}
	if z.asked == nil {
		z.asked = map[string]int{}
	}
	z.asked[question]++
	reply := new(dns.Msg)
	text, known := z.records[question]
	switch {
	case z.err != nil:
		return nil, z.err
	case z.rcode != 0:
		return reply.SetRcode(q, z.rcode), nil
	case z.broken == question:
		return reply.SetRcode(q, dns.RcodeServerFailure), nil
	case !known:
		return reply.SetRcode(q, dns.RcodeNameError), nil
	}
	reply.SetReply(q)
	reply.RecursionAvailable = !z.lame
	for line := range strings.Lines(text) {
		record, err := dns.NewRR(strings.TrimSpace(line))
		if err != nil {
			return nil, err
		}
		if record != nil {
			reply.Answer = append(reply.Answer, record)
		}
	}
	return reply, nil
}

// web and db are services with the names of records.
func options(z *zone, prior ...vip.Service) Options {
	c := NewConfig()
	c.Servers = []string{"192.0.2.53"}
	c.Services = []Service{
		{Service: spec.Service{Name: "web", Families: []string{"ipv4"}, Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}, SRV: "_http._tcp.example.com"},
		{Service: spec.Service{Name: "db", Ports: []spec.Port{{Port: spec.PortRange{First: 5432}}}}, Host: "db.example.com"},
	}
	return Options{Config: *c, Name: "dns", Pools: func() []spec.Pool { return nil }, Prior: func() []vip.Service { return prior }, exchange: z.exchange}
}

const (
	srvName = "_http._tcp.example.com. SRV"
	srv     = "_HTTP._tcp.Example.com. 30 SRV 10 5 8080 a.example.com.\n_http._tcp.example.com. 30 SRV 10 0 8081 a.example.com.\n_http._tcp.example.com. 30 SRV 20 7 8080 B.example.com.\n"
	webIs   = "web=10.0.0.1:8080*5,10.0.0.1:8081*1,10.0.0.2:8080*7b"
	dbIs    = "db=10.0.0.9*1,2001:db8::9*1"
)

func newZone() *zone {
	z := &zone{}
	z.set(srvName, srv)
	z.set("a.example.com. A", "a.example.com. 30 A 10.0.0.1")
	z.set("b.example.com. A", "b.example.com. 30 CNAME c.example.com.\nC.example.com. 30 A 10.0.0.2\nother.example.com. 30 A 10.0.0.3")
	z.set("db.example.com. A", "db.example.com. 30 A 10.0.0.9")
	z.set("db.example.com. AAAA", "db.example.com. 30 AAAA 2001:db8::9")
	return z
}

// Weights are those of the records, and only records with the lowest priority are no backups. Whatever happens to a name
// later, its last good answer stays in effect, and the problem names it. A change publishes its service only.
func TestFollowsNames(t *testing.T) {
	fails := func(name, message string) string {
		return "problems | " + `addresses of "db.example.com": service "db": ` + name + ": " + message
	}
	var many strings.Builder
	for i := range maxTargets + 1 {
		fmt.Fprintf(&many, "_http._tcp.example.com. 30 SRV 1 1 %d a.example.com.\n", i+1)
	}
	steps := []struct {
		name string
		do   func(z *zone)
		want string
	}{
		{"the records", func(*zone) {}, "replace " + dbIs + " " + webIs},
		{"another order", func(z *zone) {
			lines := strings.SplitAfter(srv, "\n")
			slices.Reverse(lines)
			z.set(srvName, strings.Join(lines, ""))
		}, ""},
		{"two addresses", func(z *zone) {
			z.set("db.example.com. A", "db.example.com. 30 A 10.0.0.9\ndb.example.com. 30 A 10.0.0.7")
		}, "put db=10.0.0.7*1,10.0.0.9*1,2001:db8::9*1"},
		{"these in another order", func(z *zone) {
			z.set("db.example.com. A", "db.example.com. 30 A 10.0.0.7\ndb.example.com. 30 A 10.0.0.9")
		}, ""},
		{"another address", func(z *zone) { z.set("db.example.com. A", "db.example.com. 30 A 10.0.0.8") }, "put db=10.0.0.8*1,2001:db8::9*1"},
		{"one family less", func(z *zone) { z.set("db.example.com. AAAA", "") }, "put db=10.0.0.8*1"},
		{"no record", func(z *zone) { z.set("db.example.com. A", "") }, fails("db.example.com", "the name has no A record, the name has no AAAA record")},
		{"no record, and no recursion", func(z *zone) { z.lame = true }, "problems | "},
		{"no name", func(z *zone) { z.lame = false }, fails("db.example.com", "the name has no A record, the name has no AAAA record")},
		{"no name", func(z *zone) { delete(z.records, "db.example.com. A"); delete(z.records, "db.example.com. AAAA") }, fails("db.example.com", "the name does not exist (NXDOMAIN)")},
		{"a loop", func(z *zone) {
			loop := "db.example.com. 30 CNAME x.example.com.\nx.example.com. 30 CNAME db.example.com."
			z.set("db.example.com. A", loop)
			z.set("db.example.com. AAAA", loop)
		}, fails("db.example.com", "the name leads to more than 16 others (CNAME)")},
		{"another server's address", func(z *zone) {
			z.set("db.example.com. A", "db.example.com. 30 A 127.0.0.1\ndb.example.com. 30 A 224.0.0.1")
		},
			"put db=127.0.0.1*1; problems | " + `addresses of "db.example.com": service "db": 224.0.0.1 is left out: 224.0.0.1 is not a unicast address`},
		{"good again", func(z *zone) { z.set("db.example.com. A", "db.example.com. 30 A 10.0.0.8") }, "put db=10.0.0.8*1; problems"},
		{"too many records", func(z *zone) { z.set(srvName, many.String()) }, `problems | SRV records of "_http._tcp.example.com": service "web": _http._tcp.example.com: 1001 SRV records are more than 1000`},
		{"a service that is not there", func(z *zone) { z.set(srvName, "_http._tcp.example.com. 30 SRV 0 0 0 .") },
			`problems | SRV records of "_http._tcp.example.com": service "web": _http._tcp.example.com: the service is not available there (its target is ".")`},
		{"one target without an address", func(z *zone) { z.set(srvName, srv); delete(z.records, "b.example.com. A") },
			`problems | SRV records of "_http._tcp.example.com": service "web": b.example.com: the name does not exist (NXDOMAIN)`},
		{"that target gone", func(z *zone) { z.set(srvName, "_http._tcp.example.com. 30 SRV 10 5 8080 a.example.com.") }, "put web=10.0.0.1:8080*5; problems"},
		{"no good answer", func(z *zone) { z.rcode = dns.RcodeServerFailure }, "problems | "},
		{"good answers", func(z *zone) { z.rcode = 0 }, "problems"},
	}
	bubble.Test(t, func(t *testing.T) {
		z, out := newZone(), &recorder{}
		scope.Go(t, func(ctx context.Context) error { return New(options(z)).Run(ctx, out) })
		for _, step := range steps {
			z.change(step.do)
			time.Sleep(time.Minute)
			got := out.take()
			expect.True(t, strings.HasPrefix(got, step.want) && (step.want != "" || got == ""), "%s:\n%s, want\n%s", step.name, got, step.want)
			expect.AtMost(t, strings.Count(got, ";"), 2, "calls after "+step.name)
			switch step.name {
			case "no good answer":
				expect.Contains(t, got, "stale _http._tcp.example.com: 192.0.2.53:53 answers SERVFAIL", step.name)
			case "good answers":
				expect.Contains(t, got, "fresh", step.name)
			}
		}
	})
}

// A name is asked for again when its records expire, but not more often than the interval, and at least once an hour.
func TestTimesOfValidity(t *testing.T) {
	for ttl, want := range map[string][2]int{"0": {1309, 1441}, "20": {654, 721}, "600": {21, 25}, "2147483647": {4, 5}, "4294967295": {4, 5}} {
		bubble.Run(t, ttl, func(t *testing.T) {
			z := newZone()
			z.set("db.example.com. A", "db.example.com. "+ttl+" A 10.0.0.9")
			z.set("db.example.com. AAAA", "")
			o := options(z)
			o.Services = o.Services[1:]
			scope.Go(t, func(ctx context.Context) error { return New(o).Run(ctx, &recorder{}) })
			time.Sleep(4 * time.Hour)
			z.change(func(z *zone) {
				expect.Between(t, z.asked["db.example.com. A"], want[0], want[1], "queries in four hours")
			})
		})
	}
}

// After a start, a name that has no answer has the backends of the last run. Without any answer the list is not published, so
// that the cache of the source is used.
func TestStartWithoutAnswers(t *testing.T) {
	prior := vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: "web"},
		Backends: []vip.Backend{{Address: netip.MustParseAddr("10.0.0.1"), Port: 8080, Weight: 9}, {Address: netip.MustParseAddr("10.0.0.2"), Port: 8080, Weight: 7, Backup: true}}}
	bubble.Test(t, func(t *testing.T) {
		z, out := newZone(), &recorder{}
		z.err = errors.New("refused")
		z.broken = "b.example.com. A"
		o := options(z, prior)
		o.Services = o.Services[:1]
		scope.Go(t, func(ctx context.Context) error { return New(o).Run(ctx, out) })
		time.Sleep(time.Minute)
		expect.Equal(t, out.take(), "stale _http._tcp.example.com: 192.0.2.53:53: refused", "without a server")
		z.change(func(z *zone) { z.err = nil })
		time.Sleep(time.Minute)
		got := out.take()
		expect.True(t, strings.HasPrefix(got, "replace "+webIs+" | SRV records"), "one target without an answer: %s", got)
		z.change(func(z *zone) { z.broken, z.records["b.example.com. A"] = "", "b.example.com. 30 A 10.0.0.4" })
		time.Sleep(time.Minute)
		expect.True(t, strings.HasPrefix(out.take(), "put web=10.0.0.1:8080*5,10.0.0.1:8081*1,10.0.0.4:8080*7b"), "all answered")
	})
	bubble.Test(t, func(t *testing.T) {
		z, out := newZone(), &recorder{}
		z.broken = "a.example.com. A"
		scope.Go(t, func(ctx context.Context) error { return New(options(z, prior)).Run(ctx, out) })
		time.Sleep(time.Minute)
		got := out.take()
		expect.True(t, strings.HasPrefix(got, "replace "+dbIs+" web=10.0.0.1:8080*9,10.0.0.2:8080*7b |"), "the primary without an answer: %s", got)
		z.change(func(z *zone) { z.set(srvName, "_http._tcp.example.com. 30 SRV 10 5 8080 a.example.com.") })
		time.Sleep(time.Minute)
		expect.Equal(t, out.take(), "put web=10.0.0.1:8080*9", "a target that was answered once, and is gone")
	})
	bubble.Test(t, func(t *testing.T) {
		z, out := newZone(), &recorder{}
		z.slow = srvName
		scope.Go(t, func(ctx context.Context) error { return New(options(z, prior)).Run(ctx, out) })
		time.Sleep(time.Minute)
		expect.Equal(t, out.take(), "replace "+dbIs+" web=10.0.0.1:8080*9,10.0.0.2:8080*7b", "a name that takes long")
	})
	bubble.Test(t, func(t *testing.T) {
		z, out := newZone(), &recorder{}
		o := options(z, prior)
		o.Services[0].SlowStart = new(spec.Duration(-1)) // as if the limits of a service were lower than before
		scope.Go(t, func(ctx context.Context) error { return New(o).Run(ctx, out) })
		time.Sleep(time.Minute)
		got := out.take()
		expect.True(t, strings.HasPrefix(got, "replace "+dbIs+" web=10.0.0.1:8080*9,10.0.0.2:8080*7b |"), "a service that can't be built any more: %s", got)
	})
}

// The second server is asked if the first one does not answer.
func TestRealServers(t *testing.T) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		reply := new(dns.Msg).SetReply(q)
		for i := range 3000 {
			reply.Answer = append(reply.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(10, 1, byte(i>>8), byte(i))})
		}
		reply.Compress = true
		_ = w.WriteMsg(reply)
	})
	server := &dns.Server{Listener: listener, Handler: handler}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	ended := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	closed := ended.Addr().String()
	must.Succeed(t, ended.Close())
	r := &resolver{servers: []string{closed, listener.Addr().String()}, exchange: overNetwork, slots: make(chan struct{}, 1)}
	records, ttl, err := r.records(t.Context(), "many.example.com", dns.TypeA)
	if err != nil || len(records) != 3000 || ttl != 60 {
		t.Errorf("%d records for %d s, %v", len(records), ttl, err)
	}
	r.servers = r.servers[:1]
	_, _, err = r.records(t.Context(), "many.example.com", dns.TypeA)
	expect.Equal(t, fmt.Sprint(err), closed+": connect: connection refused", "error without a port that changes")
}
