//go:build system

package browser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// fleetHost is a host of a segment, with an agent and an announcer in a network namespace. The browser reaches
// its agent by the unix socket, through the command dashboard.
type fleetHost struct {
	*netlab.Node
	t                testing.TB
	dir              string
	agent, announcer *process.Process
	api              *client.Client
}

// fleetVIPs are the VIPs of the services s0, s1 and so on.
func fleetVIPs() (out []netip.Addr) {
	for i := range 8 {
		out = append(out, netip.AddrFrom4([4]byte{10, 78, 0, byte(130 + i)}))
	}
	return out
}

// newFleetHost prepares a host with the services of a pool. more is added to its configuration.
func newFleetHost(t testing.TB, n *netlab.Node, mode, more string) *fleetHost {
	t.Helper()
	h := &fleetHost{Node: n, t: t, dir: t.TempDir()}
	at := func(name string) string { return filepath.Join(h.dir, name) }
	var services strings.Builder
	for i, vip := range fleetVIPs() {
		fmt.Fprintf(&services, "[[service]]\nname = \"s%d\"\nvips = [%q]\nports = [{ port = 80 }]\nbackends = [{ address = \"127.0.0.1\", port = 9000 }]\nhealth = { type = \"none\" }\n", i, vip)
	}
	// VIPs move after 3 s of silence, so that a busy machine moves none.
	config := fmt.Sprintf("[node]\nname = %q\nstate_dir = %q\n[api]\nsocket = %q\n[dataplane]\nmode = \"proxy\"\n[[pool]]\nname = \"lan\"\ncidrs = [\"10.78.0.128/25\"]\n[announce]\nmode = %q\nsocket = %q\nsettle = \"1s\"\nmissed = 30\n%s",
		n.Name, at("state"), at("api.sock"), mode, at("control.sock"), more)
	for name, text := range map[string]string{"ironvip.toml": config, "services.d/s.toml": services.String()} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o755), os.WriteFile(at(name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// This kernel may lack dummy devices. A bridge without ports serves as the device of the VIPs.
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "ironvip0"
	err := n.Netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	link, e := n.Netlink.LinkByName("ironvip0")
	if err = cmp.Or(err, e); err == nil {
		err = errors.Join(n.Netlink.LinkSetARPOff(link), n.Netlink.LinkSetUp(link))
	}
	must.Succeed(t, err)
	bin := need.Binary(t)
	h.agent = process.New(bin, at("agent.log"), n, "agent", "--config", h.dir)
	h.announcer = process.New(bin, at("announcer.log"), n, "announcer", "--socket", at("control.sock"))
	h.announcer.Nice = -10 // as in its unit
	if h.api, err = client.New("unix://"+at("api.sock"), client.Options{Timeout: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.api.Close)
	t.Cleanup(h.kill)
	return h
}

func (h *fleetHost) start() {
	h.t.Helper()
	must.Succeed(h.t, errors.Join(h.agent.Start(), h.announcer.Start()))
}

// kill ends the processes of the host as a power failure does.
func (h *fleetHost) kill() {
	h.announcer.Kill()
	h.agent.Kill()
	if h.t.Failed() {
		h.t.Logf("%s: agent\n%s\nannouncer\n%s", h.Name, h.agent.LogEnd(3000), h.announcer.LogEnd(3000))
	}
}

// owners returns the owner of each VIP, as the host reports it, in the words of the page.
func (h *fleetHost) owners() (map[string]string, error) {
	list, err := h.api.Announcements(context.Background())
	out := map[string]string{}
	for _, a := range list.Items {
		out[a.VIP.String()] = a.Owner
	}
	return out, err
}

// dashboard runs the command of that name for the host's agent, and opens a page of it.
func (h *fleetHost) dashboard(t testing.TB, path string) *tab {
	t.Helper()
	log := filepath.Join(h.dir, "dashboard.log")
	p := process.New(need.Binary(t), log, nil, "--addr", "unix://"+filepath.Join(h.dir, "api.sock"), "dashboard")
	t.Cleanup(p.Kill)
	must.Succeed(t, p.Start())
	var url []string
	wait.For(t, "the address of the dashboard", func() error {
		if url = regexp.MustCompile(`(http://127\.0\.0\.1:\d+)(/ui/\?once=\S+)`).FindStringSubmatch(p.LogEnd(4000)); url == nil {
			return errors.New(p.LogEnd(4000))
		}
		return nil
	})
	b := open(t, url[1], url[2])
	b.see("h1", "Overview")
	b.show(path)
	return b
}

// rows returns the cells of the rows of a table.
func (b *tab) rows(label string) [][]string {
	b.Helper()
	return eval[[][]string](b, fmt.Sprintf(`[...document.querySelectorAll('[aria-label=%s] :is(tbody tr, .rows .row)')].map(r => [...r.children].map(c => c.innerText.trim()))`, quote(label)))
}

// rowOf returns the row of a table that begins with these words.
func (b *tab) rowOf(label, words string) string {
	b.Helper()
	for _, cells := range b.rows(label) {
		if row := strings.Join(cells, " "); strings.HasPrefix(row, words+" ") {
			return row
		}
	}
	return ""
}

// row waits until the row of a table that begins with these words has these texts.
func (b *tab) row(label, words string, parts ...string) {
	b.Helper()
	wait.For(b, "a row of "+label, func() error {
		row := b.rowOf(label, words)
		for _, p := range parts {
			if !strings.Contains(row, p) {
				return fmt.Errorf("the row of %s does not have %q: %q", words, p, row)
			}
		}
		return nil
	})
}

// ownersOnPage returns the owner of each VIP on the page, and an error unless the reason names it, too.
func (b *tab) ownersOnPage() (map[string]string, error) {
	b.Helper()
	out := map[string]string{}
	for _, cells := range b.rows("VIPs and their owners") {
		if len(cells) == 1 {
			return nil, errors.New(cells[0]) // it loads, or there is no VIP
		}
		vip, owner, why := cells[0], cells[1], cells[len(cells)-1]
		if out[vip] = owner; !strings.HasPrefix(why, owner+": ") {
			return nil, fmt.Errorf("%s of %s: the reason is %q", vip, owner, why)
		}
	}
	return out, nil
}

// agree waits until the page shows the owners that another host reports, and they fulfill a condition. It returns
// them.
func (b *tab) agree(with *fleetHost, ok func(map[string]string) bool) (owners map[string]string) {
	b.Helper()
	wait.For(b, "the owners on the page", func() error {
		shown, err := b.ownersOnPage()
		reported, e := with.owners()
		if err = cmp.Or(err, e); err != nil {
			return err
		}
		if owners = shown; len(shown) != len(fleetVIPs()) || fmt.Sprint(shown) != fmt.Sprint(reported) || !ok(shown) {
			return fmt.Errorf("the page has %v, %s reports %v", shown, with.Name, reported)
		}
		return nil
	})
	return owners
}

// fleetOnConsul is three hosts with Consul, and the page of the first one.
func fleetOnConsul(t *testing.T) (hosts []*fleetHost, consul *consultest.Server, b *tab) {
	t.Helper()
	lan := netlab.NewLAN(t, "lb1", "lb2", "lb3", "consul")
	node := lan.Nodes[3]
	consul = consultest.Start(t, consultest.Options{In: node, Addr: node.Addr4, Memory: true})
	for _, n := range lan.Nodes[:3] {
		h := newFleetHost(t, n, "l2", fmt.Sprintf("[ipam]\nstore = \"consul\"\n[consul]\naddress = %q\n", consul.Addr))
		h.start()
		hosts = append(hosts, h)
	}
	wait.For(t, "the agent answers", func() error { _, err := hosts[0].api.Whoami(t.Context()); return err })
	return hosts, consul, hosts[0].dashboard(t, "/ui/fleet")
}

// each returns whether each of these hosts owns a VIP, and no other does.
func each(names ...string) func(map[string]string) bool {
	return func(owners map[string]string) bool {
		return slices.Equal(slices.Compact(slices.Sorted(maps.Values(owners))), names)
	}
}

// A fleet of three hosts on Consul: the page of one shows the hosts, the owner of each VIP and why, as the others
// report it. It follows a host that dies and returns.
// Slow: a host is dead after 3 s of silence.
func TestFleetPage(t *testing.T) {
	t.Parallel()
	hosts, _, b := fleetOnConsul(t)
	two, three := hosts[1], hosts[2]
	b.agree(two, each("lb1", "lb2", "lb3"))
	b.row("VIPs and their owners", fleetVIPs()[0].String(), "highest of 3 eligible")
	b.row("Hosts", "lb1", "answers", "present", " ms", "proxy")
	b.row("Hosts", "lb2", "present", " ms", "proxy")
	b.row("Hosts", "lb3", "present", " ms", "proxy")
	if n := strings.Count(b.text("main"), "leader"); n != 1 {
		t.Errorf("the page shows %d leaders: %s", n, b.text("main"))
	}
	b.row("Sessions", "host lb2", "alive")
	b.row("Sessions", "host lb3", "alive")
	b.accessible()
	b.valid()
	b.shoot("fleet")

	two.kill()
	b.agree(three, each("lb1", "lb3"))
	b.row("Sessions", "host lb2", "dead")
	wait.For(t, "the host is gone", func() error {
		row := b.rowOf("Hosts", "lb2")
		if strings.Contains(row, "dead") || strings.Contains(row, "lost") { // for its neighbours, and a minute later for Consul
			return nil
		}
		return errors.New(row)
	})
	two.start()
	b.row("Hosts", "lb2", "present")
	b.agree(three, each("lb1", "lb2", "lb3"))
	b.quiet()
}

// The page shows the session with a router, why it is down, and that the VIPs wait for it.
func TestRouterOnFleetPage(t *testing.T) {
	t.Parallel()
	lan := netlab.NewLAN(t, "lb1", "router")
	router := lan.Nodes[1]
	h := newFleetHost(t, lan.Nodes[0], "bgp", fmt.Sprintf("[[announce.bgp]]\npeer = %q\nasn = 65000\nlocal_asn = 65010\n", router.Addr4))
	h.start()
	bird := routers.StartBird(t, router, fmt.Sprintf("router id 10.78.0.250;\nprotocol bgp lb1 { local as 65000; neighbor %s as 65010; error wait time 1, 2; connect retry time 1;\nipv4 { import all; export none; };\n}\n", h.Addr4))
	wait.For(t, "the agent answers", func() error { _, err := h.api.Whoami(t.Context()); return err })
	b := h.dashboard(t, "/ui/fleet")
	name := router.Addr4.String()
	b.row("Sessions", "bgp "+name, "established")
	b.row("VIPs and their owners", fleetVIPs()[0].String(), "this host", "announced", "lb1: eligible")
	bird.Kill()
	b.row("Sessions", "bgp "+name, "idle", "no BGP daemon listens")
	b.row("VIPs and their owners", fleetVIPs()[0].String(), "waiting", "no BGP daemon listens")
	bird.StartAgain()
	b.row("Sessions", "bgp "+name, "established")
	b.row("VIPs and their owners", fleetVIPs()[0].String(), "announced")
	b.accessible()
	b.valid()
	b.quiet()
}
