//go:build system || vm

package announce

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

const servicePort = 80

// lab is a segment with hosts that share VIPs, and a client.
type lab struct {
	*netlab.LAN
	t      testing.TB
	client *netlab.Node
	hosts  []*host
	// backends are the addresses of the services' backends, one of each family.
	backends []string
}

// host is one host with its two processes.
type host struct {
	*netlab.Node
	t         testing.TB
	dir       string
	port      string // of the switch
	agent     *process.Process
	announcer *process.Process
	api       *client.Client
}

// patient makes a host dead only after 10 s without a heartbeat, for tests in which no host dies: the machine that
// runs all hosts may stop them all for seconds.
const patient = "missed = 100\n"

// newLab starts hosts with the services of one pool, in which the first VIP of each family is
// web's. Extra is added to [announce] of each host.
func newLab(t testing.TB, hosts int, extra string) *lab {
	t.Helper()
	l := prepareLab(t, hosts)
	l.start("l2", extra)
	return l
}

// prepareLab is newLab without a configuration and running processes.
func prepareLab(t testing.TB, hosts int) *lab {
	t.Helper()
	bin := need.Binary(t)
	l := &lab{LAN: netlab.NewLAN(t), t: t}
	for i := range hosts {
		l.Join(fmt.Sprintf("lb%d", i+1))
	}
	l.client = l.Join("client")
	l.backends = []string{"127.0.0.1", "::1"}
	if dataplane == "ipvs" { // the kernel does not forward to loopback addresses
		n := l.Join("backend")
		l.backends = []string{n.Addr4.String(), n.Addr6.String()}
		serve(n, l.backends)
	}
	for i := range hosts {
		n := l.Nodes[i]
		h := &host{Node: n, t: t, dir: t.TempDir(), port: n.Name + ".eth0"}
		l.hosts = append(l.hosts, h)
		if dataplane == "proxy" {
			l.device(h)
			serve(n, l.backends)
		}
		h.agent = h.newAgent()
		h.announcer = process.New(bin, filepath.Join(h.dir, "announcer.log"), n, "announcer", "--socket", filepath.Join(h.dir, "control.sock"))
		h.announcer.Nice = -10 // as in its unit
		t.Cleanup(h.kill)
		api := must.Get(client.New("unix://"+filepath.Join(h.dir, "api.sock"), client.Options{Timeout: 10 * time.Second}))(t)
		t.Cleanup(api.Close)
		h.api = api
	}
	return l
}

// start configures and starts the hosts.
func (l *lab) start(mode, extra string) {
	l.t.Helper()
	for _, h := range l.hosts {
		h.configure(services(serviceCount, l.backends), l.config(h, mode, l.peers()+extra))
		h.start()
	}
}

// newAgent returns an agent that is not running yet.
func (h *host) newAgent(args ...string) *process.Process {
	return process.New(need.Binary(h.t), filepath.Join(h.dir, "agent.log"), h.Node, append([]string{"agent", "--config", h.dir}, args...)...)
}

func serve(n *netlab.Node, addrs []string) {
	for _, a := range addrs {
		n.Serve("tcp", netip.AddrPortFrom(netip.MustParseAddr(a), 9000))
	}
}

// device creates the device of the VIPs. This kernel may lack dummy devices; a bridge without ports
// does the same for a host's own addresses.
func (l *lab) device(h *host) {
	l.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "ironvip0"
	err := h.Netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	link, e := h.Netlink.LinkByName("ironvip0")
	if err = cmp.Or(err, e); err == nil {
		err = errors.Join(h.Netlink.LinkSetARPOff(link), h.Netlink.LinkSetUp(link))
	}
	must.Succeed(l.t, err)
}

// peers returns the keys of [announce] for hosts without a fleet: all of them list all of them.
func (l *lab) peers() string {
	var peers []string
	for _, h := range l.hosts {
		peers = append(peers, fmt.Sprintf("%q", h.Addr4))
	}
	return fmt.Sprintf("peers = [%s]\nkey_file = \"key\"\n", strings.Join(peers, ", "))
}

// config returns ironvip.toml of a host, with more keys of [announce] and tables.
func (l *lab) config(h *host, mode, extra string) string {
	return h.tables() + fmt.Sprintf(`
[[pool]]
name = "lan"
cidrs = ["10.78.0.130-10.78.0.254", "fd78::1:0/112"]
[announce]
mode = %q
%s%s
`, mode, h.announceKeys(), extra)
}

// tables returns those of ironvip.toml that every host of a lab needs.
func (h *host) tables() string {
	return fmt.Sprintf(`
[node]
name = %q
state_dir = %q
[api]
socket = %q
[dataplane]
mode = %q
`, h.Name, filepath.Join(h.dir, "state"), filepath.Join(h.dir, "api.sock"), dataplane)
}

// announceKeys returns those of [announce] that every host of a lab needs.
func (h *host) announceKeys() string {
	return fmt.Sprintf("socket = %q\nsettle = \"1s\"\n", filepath.Join(h.dir, "control.sock"))
}

// services returns the services: each has a VIP of each family, so that all hosts own some.
func services(n int, backends []string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "[[service]]\nname = \"s%d\"\nvips = [%q, %q]\nports = [{ port = %d }]\nbackends = [{ address = %q, port = 9000 }, { address = %q, port = 9000 }]\nhealth = { type = \"none\" }\n",
			i, vip4(i), vip6(i), servicePort, backends[0], backends[1])
	}
	return b.String()
}

const serviceCount = 6

func vip4(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 78, 0, byte(130 + i)}) }

func vip6(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x78, 13: 1, 15: byte(1 + i)})
}

// vips returns all VIPs of the lab.
func vips() (out []netip.Addr) {
	for i := range serviceCount {
		out = append(out, vip4(i), vip6(i))
	}
	return out
}

func (h *host) configure(services, text string) {
	h.t.Helper()
	for name, content := range map[string]string{"ironvip.toml": text, "key": "a secret of the test\n", "services.d/s.toml": services} {
		path := filepath.Join(h.dir, name)
		must.Succeed(h.t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)))
	}
}

// edit replaces a text of ironvip.toml.
func (h *host) edit(old, now string) {
	h.t.Helper()
	path := filepath.Join(h.dir, "ironvip.toml")
	text := string(must.Get(os.ReadFile(path))(h.t))
	must.True(h.t, strings.Contains(text, old), "%s has no %s", path, old)
	must.Succeed(h.t, os.WriteFile(path, []byte(strings.Replace(text, old, now, 1)), 0o600))
}

func (h *host) start() {
	h.t.Helper()
	must.Succeed(h.t, errors.Join(h.agent.Start(), h.announcer.Start()))
}

func (h *host) kill() {
	h.announcer.Kill()
	h.agent.Kill()
	if h.t.Failed() {
		if t, ok := h.t.(*testing.T); ok {
			t.Logf("%s: agent\n%s\nannouncer\n%s", h.Name, h.agent.LogEnd(3000), h.announcer.LogEnd(6000))
		}
	}
}

// announcements returns what the host's agent reports, by VIP.
func (h *host) announcements() (map[netip.Addr]v1.Announcement, error) {
	out := map[netip.Addr]v1.Announcement{}
	list, err := h.api.Announcements(context.Background())
	for _, a := range list.Items {
		out[a.VIP] = a
	}
	return out, err
}

// owners returns the owner of each VIP as all running hosts report it, or an error if they differ
// or a VIP has none.
func (l *lab) owners() (map[netip.Addr]string, error) {
	out := map[netip.Addr]string{}
	for _, h := range l.hosts {
		if !h.agent.Running() || !h.announcer.Running() {
			continue
		}
		all, err := h.announcements()
		if err != nil {
			return nil, err
		}
		for _, vip := range vips() {
			a, ok := all[vip]
			switch {
			case !ok || a.Owner == "":
				return nil, fmt.Errorf("%s: %s has no owner: %s", h.Name, vip, a.Why)
			case out[vip] != "" && out[vip] != a.Owner:
				return nil, fmt.Errorf("%s is announced by %s, and by %s according to %s", vip, out[vip], a.Owner, h.Name)
			case a.Here && a.State != v1.AnnouncedHere:
				return nil, fmt.Errorf("%s: %s is %s", h.Name, vip, a.State)
			}
			out[vip] = a.Owner
		}
	}
	return out, nil
}

// awaitOwners waits until all hosts agree about the owners, and a condition holds.
func (l *lab) awaitOwners(what string, ok func(map[netip.Addr]string) bool) {
	l.t.Helper()
	wait.For(l.t, what, func() error {
		owners, err := l.owners()
		if err == nil && !ok(owners) {
			err = fmt.Errorf("owners %v", owners)
		}
		return err
	})
}

// awaitThese waits until all hosts agree about these owners.
func (l *lab) awaitThese(owners map[netip.Addr]string) {
	l.t.Helper()
	l.awaitOwners("the same owners as before", func(o map[netip.Addr]string) bool { return maps.Equal(o, owners) })
}

// awaitNone waits until all hosts agree that one of them owns no VIP.
func (l *lab) awaitNone(h *host) {
	l.t.Helper()
	l.awaitOwners("none on "+h.Name, func(o map[netip.Addr]string) bool { return !owns(o, h) })
}

// awaitAll waits until a host announces all VIPs, as it reports itself.
func (h *host) awaitAll() {
	h.t.Helper()
	wait.For(h.t, "all on "+h.Name, func() error {
		all, err := h.announcements()
		for _, vip := range vips() {
			if err == nil && !all[vip].Here {
				err = fmt.Errorf("%s: %s", vip, all[vip].Why)
			}
		}
		return err
	})
}

// awaitPeers waits until the host reports a number of peers, which all have a property.
func (h *host) awaitPeers(number int, what string, ok func(v1.AnnouncePeer) bool) {
	h.t.Helper()
	wait.For(h.t, h.Name+": "+what, func() error {
		list, err := h.api.AnnouncePeers(context.Background())
		if err != nil {
			return err
		}
		if len(list.Items) != number || slices.ContainsFunc(list.Items, func(p v1.AnnouncePeer) bool { return !ok(p) }) {
			return fmt.Errorf("%+v", list.Items)
		}
		return nil
	})
}

// settled waits until all hosts take part: the best one of all owns each VIP, and each host owns some. It
// returns the owners. As long as nothing happens, they stay.
func (l *lab) settled() map[netip.Addr]string {
	l.t.Helper()
	var owners map[netip.Addr]string
	best := fmt.Sprintf(": highest of %d eligible", len(l.hosts))
	wait.For(l.t, "the final owners", func() (err error) {
		if owners, err = l.owners(); err != nil {
			return err
		}
		for _, h := range l.hosts {
			all, err := h.announcements()
			if err != nil {
				return err
			}
			for vip, a := range all {
				if a.Why != a.Owner+best {
					return fmt.Errorf("%s: %s: %s", h.Name, vip, a.Why)
				}
			}
			if !owns(owners, h) {
				return fmt.Errorf("%s owns no VIP: %v", h.Name, owners)
			}
		}
		return nil
	})
	return owners
}

// decision is who a host considers the owner of a VIP, and since when.
type decision struct {
	owner, since, why string
}

type decisionAt struct {
	host string
	vip  netip.Addr
}

// decisions returns the decisions of all hosts.
func (l *lab) decisions() map[decisionAt]decision {
	l.t.Helper()
	out := map[decisionAt]decision{}
	for _, h := range l.hosts {
		all := must.Get(h.announcements())(l.t)
		for vip, a := range all {
			out[decisionAt{h.Name, vip}] = decision{a.Owner, a.Since.Format(time.RFC3339Nano), a.Why}
		}
	}
	return out
}

func owns(owners map[netip.Addr]string, h *host) bool {
	return slices.Contains(slices.Collect(maps.Values(owners)), h.Name)
}

// ownedBy returns the first VIP of a family that a host owns.
func ownedBy(t testing.TB, owners map[netip.Addr]string, name string, v6 bool) netip.Addr {
	t.Helper()
	var own []netip.Addr
	for vip, owner := range owners {
		if owner == name && vip.Is6() == v6 {
			own = append(own, vip)
		}
	}
	must.True(t, len(own) != 0, "%s owns no such VIP: %v", name, owners)
	return slices.MinFunc(own, netip.Addr.Compare)
}

// run runs a command of the program against the host's agent.
func (h *host) run(args ...string) (string, error) {
	cmd := exec.Command(need.Binary(h.t), args...)
	cmd.Env = append(os.Environ(), "IRONVIP_ADDR=unix://"+filepath.Join(h.dir, "api.sock"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (h *host) must(args ...string) string {
	h.t.Helper()
	out, err := h.run(args...)
	if err != nil {
		h.t.Fatalf("%s: ironvip %s: %v\n%s", h.Name, strings.Join(args, " "), err, out)
	}
	return out
}

// cutOff separates a host from the segment without a change of its carrier, or joins it again.
func (l *lab) cutOff(h *host, off bool) {
	l.t.Helper()
	port, err := l.Switch.Netlink.LinkByName(h.port)
	must.Succeed(l.t, err)
	if off {
		err = l.Switch.Netlink.LinkSetNoMaster(port)
	} else {
		bridge, e := l.Switch.Netlink.LinkByName("br0")
		err = cmp.Or(e, l.Switch.Netlink.LinkSetMaster(port, bridge))
	}
	must.Succeed(l.t, err)
}

// setPort sets the carrier of a host.
func (l *lab) setPort(h *host, up bool) {
	l.t.Helper()
	port, err := l.Switch.Netlink.LinkByName(h.port)
	if err == nil && up {
		err = l.Switch.Netlink.LinkSetUp(port)
	} else if err == nil {
		err = l.Switch.Netlink.LinkSetDown(port)
	}
	must.Succeed(l.t, err)
}

func (h *host) pause(all ...*process.Process) {
	h.t.Helper()
	for _, p := range all {
		must.Succeed(h.t, p.Pause())
	}
}

func (h *host) resume(all ...*process.Process) {
	h.t.Helper()
	for _, p := range all {
		must.Succeed(h.t, p.Resume())
	}
}

func (h *host) startAnnouncer() {
	h.t.Helper()
	must.Succeed(h.t, h.announcer.Start())
}

// serviceOf returns the name of a VIP's service.
func serviceOf(vip netip.Addr) string {
	for i := range serviceCount {
		if vip == vip4(i) || vip == vip6(i) {
			return fmt.Sprint("s", i)
		}
	}
	return ""
}

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
