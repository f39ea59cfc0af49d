package naming

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/dnstest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/inherit"
	"github.com/ironvip/ironvip/test/metrictest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a running Naming and what it reads.
type world struct {
	*Naming
	t      *testing.T
	config atomic.Pointer[configs.Config]
	tables *dnstest.Tables
	host   *table.Table[struct{}, hostnet.Snapshot]
	events *event.Log
	end    func()
}

func newWorld(t *testing.T, config string) *world {
	t.Helper()
	return newWorldWith(t, config, &sockets.Set{})
}

func newWorldWith(t *testing.T, config string, set *sockets.Set) *world {
	t.Helper()
	tables := dnstest.NewTables()
	w := &world{t: t, tables: tables, host: table.New(tables.Clock, hostnet.KeyOf, hostnet.Same), events: event.NewLog(100, time.Now)}
	w.configure(config)
	var err error
	w.Naming, err = New(Options{Config: w.config.Load, Services: tables.Services, Allocations: tables.Allocations, Leases: tables.Leases,
		Host: w.host, Sockets: set, Clock: tables.Clock, Events: w.events, Log: slog.New(slog.DiscardHandler)})
	must.Succeed(t, err)
	w.end = scope.Go(t, w.Run)
	return w
}

// configure sets the configuration; call Reload after the start.
func (w *world) configure(text string) {
	w.t.Helper()
	c, problems := configs.Parse("c.toml", []byte("[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']\n"+text))
	must.Empty(w.t, problems)
	w.config.Store(c)
}

func (w *world) service(name string, since int, vipText string, hostnames ...string) {
	w.tables.Service(name, hostnames...)
	w.tables.Allocate(name, since, vipText)
}

// resolves waits until a name has an address at a server.
func (w *world) resolves(at, name, want string) {
	w.t.Helper()
	wait.For(w.t, name+" is "+want, func() error {
		got, err := dnstest.Ask(dnstest.Here, 20*time.Second, "udp", at, name, "A")
		if err == nil && got != want {
			err = fmt.Errorf("it is %s", got)
		}
		return err
	})
}

// says waits until the line of the status has a level and a text.
func (w *world) says(level, text string) {
	w.t.Helper()
	wait.For(w.t, "status says "+text, func() error {
		checks := w.Checks()
		if len(checks) != 1 || checks[0].Level != level || !strings.Contains(checks[0].Message, text) || (level == v1.LevelWarn) != (checks[0].Hint != "") {
			return fmt.Errorf("%+v", checks)
		}
		return nil
	})
}

// Names are answered from the reload on that has an address, with other settings after the next one,
// and not after the last one.
func TestReload(t *testing.T) {
	ports := freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	w := newWorld(t, "")
	w.service("web", 1, "192.0.2.10")
	w.tables.Listed()
	expect.Empty(t, w.Checks(), "without dns.listen")
	if series := w.series(); len(series) > 0 || w.Stage.Len() != 0 {
		t.Errorf("without dns.listen: %v, %d names", series, w.Stage.Len())
	}
	w.configure("[dns]\nlisten = ['" + at(1) + "']")
	w.Reload()
	w.resolves(at(1), "web.vip.internal", "NOERROR 192.0.2.10")
	w.says(v1.LevelOK, "names of 1 service in vip.internal at "+at(1))

	w.configure("[dns]\nlisten = ['" + at(1) + "', '" + at(2) + "']\ndomain = 'lb.example.com'\nshort_names = false")
	w.Reload()
	w.resolves(at(2), "web.default.svc.lb.example.com", "NOERROR 192.0.2.10")
	w.resolves(at(1), "web.lb.example.com", "NXDOMAIN")
	w.resolves(at(1), "web.vip.internal", "REFUSED")

	w.configure("")
	w.Reload()
	wait.For(t, "nothing listens", func() error {
		c, err := net.ListenPacket("udp", at(1))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// The agent closes the sockets that the last process left and nobody wants. It learns when DNS has its
// own: when the names of the last run are known, or at once without an address. Neither waits for the
// sources.
func TestClaimed(t *testing.T) {
	ports := freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))
	at := fmt.Sprintf("127.0.0.1:%d", ports[1])
	off := newWorld(t, "")
	<-off.Claimed()
	off.configure("[dns]\nlisten = ['" + at + "']")
	off.Reload()
	off.service("web", 1, "192.0.2.10")
	off.resolves(at, "web.vip.internal", "NOERROR 192.0.2.10")
	next := inherit.From(t, off.Sockets)
	off.end()
	on := newWorldWith(t, "[dns]\nlisten = ['"+at+"']", next)
	<-on.Claimed()
	expect.Equal(t, next.Unclaimed(), 0, "sockets are unclaimed")
}

func TestStatusAndMetrics(t *testing.T) {
	ports := freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))
	at := fmt.Sprintf("127.0.0.1:%d", ports[1])
	other := must.Get(net.ListenPacket("udp", at))(t)
	defer other.Close()
	w := newWorld(t, "[dns]\nlisten = ['"+at+"']")
	w.service("web", 1, "192.0.2.10", "shop.example.com")
	w.says(v1.LevelWarn, "DNS queries are not answered at "+at)
	if c := w.Checks()[0]; len(c.Problems) != 1 || c.Problems[0].Code != vip.CodePortTaken || c.InMessage != 1 || c.Message != c.Problems[0].Message {
		t.Errorf("%+v", c)
	}
	if series := w.series(); !slices.Contains(series, `ironvip_dns_up{listen="`+at+`"} 0`) {
		t.Errorf("an address that is not answered is not in\n%s", strings.Join(series, "\n"))
	}
	other.Close()
	w.resolves(at, "shop.example.com", "NOERROR 192.0.2.10")
	w.says(v1.LevelOK, "unknown names get SERVFAIL until every source has been read")
	w.tables.Listed()
	w.resolves(at, "none.vip.internal", "NXDOMAIN")

	w.service("new", 2, "192.0.2.11", "shop.example.com")
	w.says(v1.LevelOK, "(1 conflict)")
	kinds := func(want ...string) {
		t.Helper()
		wait.For(t, "events "+strings.Join(want, ", "), func() error {
			events, _ := w.events.Since(0)
			var got []string
			for _, e := range events {
				if e.Service == "new" && e.Object == "shop.example.com" {
					got = append(got, e.Kind)
				}
			}
			if strings.Join(got, ", ") != strings.Join(want, ", ") {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
	}
	kinds("dns_name_taken")
	w.service("new", 2, "192.0.2.11")
	kinds("dns_name_taken", "dns_name_freed")

	series := w.series()
	for _, want := range []string{`ironvip_dns_up{listen="` + at + `"} 1`, `ironvip_dns_queries_total{rcode="NXDOMAIN",transport="udp",type="A"} 1`,
		`ironvip_dns_dropped_total{reason="malformed"} 0`, `ironvip_dns_names 9`, `ironvip_dns_name_conflicts 0`, `ironvip_dns_tcp_connections 0`} {
		if !slices.Contains(series, want) {
			t.Errorf("no %s in\n%s", want, strings.Join(series, "\n"))
		}
	}
}

// series returns the metrics.
func (w *world) series() []string {
	w.t.Helper()
	return strings.FieldsFunc(metrictest.Text(w.t, w.Collect), func(r rune) bool { return r == '\n' })
}
