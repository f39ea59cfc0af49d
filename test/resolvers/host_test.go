//go:build system

package resolvers

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

const (
	zone    = "vip.internal"
	pool4   = "10.96.0.0/16"
	pool6   = "fd96::/112"
	serving = "127.0.0.1:8653" // the documented address of the DNS server
)

// host is a host with an agent that answers for names. Its services have no backends, because no
// test uses their ports.
type host struct {
	*netlab.Node
	t      testing.TB
	dir    string
	agent  *process.Process
	client *http.Client // of the agent
}

// newHost returns a host without a running agent.
func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{Node: netlab.NewLAN(t, "host").Nodes[0], t: t, dir: folder(t)}
	h.addDevice()
	h.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(h.dir, "sock"))
	}}}
	t.Cleanup(h.client.CloseIdleConnections)
	must.Succeed(t, os.Mkdir(filepath.Join(h.dir, "services.d"), 0o755))
	return h
}

// addDevice makes the device for VIPs: a bridge, because this kernel may lack dummy devices.
func (h *host) addDevice() {
	h.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "ironvip0"
	must.Succeed(h.t, h.Netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	made := must.Get(h.Netlink.LinkByName("ironvip0"))(h.t)
	must.Succeed(h.t, h.Netlink.LinkSetUp(made))
	h.addPort(made)
}

// removeDevice removes the device, and waits until the agent has made it again.
func (h *host) removeDevice() {
	h.t.Helper()
	for _, name := range []string{"port", "ironvip0"} {
		if link, err := h.Netlink.LinkByName(name); err == nil {
			must.Succeed(h.t, h.Netlink.LinkDel(link))
		}
	}
	var made netlink.Link
	wait.For(h.t, "the device again", func() (err error) { made, err = h.Netlink.LinkByName("ironvip0"); return err })
	if made.Type() == "bridge" {
		h.addPort(made)
	}
}

// addPort gives a bridge a port: without one, it has no carrier, and systemd-resolved uses no server of such a link.
func (h *host) addPort(bridge netlink.Link) {
	h.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = "port", bridge.Attrs().Index
	must.Succeed(h.t, h.Netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far"}))
	for _, name := range []string{"port", "far"} {
		must.Succeed(h.t, h.Netlink.LinkSetUp(must.Get(h.Netlink.LinkByName(name))(h.t)))
	}
}

// folder returns a new folder that daemons with their own users can read.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "resolver")
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	must.Succeed(t, err)
	return dir
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	must.Succeed(t, os.WriteFile(path+".new", []byte(text), 0o644))
	must.Succeed(t, os.Rename(path+".new", path))
	return path
}

// configure writes ironvip.toml, with more keys of [dns].
func (h *host) configure(keys string) {
	h.t.Helper()
	write(h.t, filepath.Join(h.dir, "ironvip.toml"), fmt.Sprintf(`[node]
name = "host"
state_dir = "%[1]s/state"
[api]
socket = "%[1]s/sock"
[dataplane]
mode = "proxy"
resync_interval = "1s"
[health]
default = "none"
[[pool]]
name = "main"
cidrs = [%[2]q, %[3]q]
[dns]
listen = [%[4]q]
%[5]s
`, h.dir, pool4, pool6, serving, keys))
}

// service writes a service's file. Its VIPs end with number.
func (h *host) service(name, namespace string, number int) {
	h.t.Helper()
	write(h.t, filepath.Join(h.dir, "services.d", name+".toml"), fmt.Sprintf(`[[service]]
name = %q
namespace = %q
vips = ["10.96.0.%[3]d", "fd96::%[3]x"]
ports = [{ name = "http", port = 80 }]
`, name, namespace, number))
}

// start starts the agent and waits until it answers for a name.
func (h *host) start(bin string, name string) {
	h.t.Helper()
	h.agent = run(h.t, h.Node, "agent", filepath.Join(h.dir, "agent.log"), bin, "agent", "--config", h.dir)
	h.await(serving, name, dns.TypeA)
}

// run starts a program that ends with the test.
func run(t testing.TB, in process.Place, name, log, bin string, args ...string) *process.Process {
	t.Helper()
	p := process.New(bin, log, in, args...)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, p.LogEnd(4000))
		}
	})
	must.Succeed(t, p.Start(), "%s", name)
	return p
}

// ask asks a DNS server of the host, in UDP.
func (h *host) ask(server, name string, kind uint16) (*dns.Msg, error) {
	h.t.Helper()
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	c := dns.Client{Timeout: 5 * time.Second}
	var conn net.Conn
	var err error
	h.Do(func() { conn, err = net.Dial("udp", server) })
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r, _, err := c.ExchangeWithConnContext(context.Background(), q, &dns.Conn{Conn: conn})
	return r, err
}

// await waits until a DNS server has an answer for a name, and returns its data.
func (h *host) await(server, name string, kind uint16) (found []string) {
	h.t.Helper()
	wait.For(h.t, fmt.Sprintf("%s answers for %s", server, name), func() error {
		r, err := h.ask(server, name, kind)
		if err != nil {
			return err
		}
		if found = data(r); len(found) == 0 {
			return fmt.Errorf("the answer is %v", r)
		}
		return nil
	})
	return found
}

// data returns the data of the records in an answer, sorted.
func data(r *dns.Msg) (out []string) {
	for _, rr := range r.Answer {
		if rr.Header().Rrtype != dns.TypeCNAME {
			out = append(out, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
	}
	slices.Sort(out)
	return out
}

// recipe returns the fenced block of docs/dns.md with that name, the configuration of a resolver.
func recipe(t testing.TB, name string) string {
	t.Helper()
	text := must.Get(os.ReadFile("../../docs/dns.md"))(t)
	m := regexp.MustCompile("(?ms)^```" + regexp.QuoteMeta(name) + "\n(.*?)^```$").FindSubmatch(text)
	must.True(t, m != nil, "docs/dns.md has no block %s", name)
	return string(m[1])
}

// reverse is the reverse name of an address.
func reverse(t testing.TB, addr netip.Addr) string {
	t.Helper()
	return must.Get(dns.ReverseAddr(addr.String()))(t)
}
