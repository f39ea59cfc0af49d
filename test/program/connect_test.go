//go:build system

package program

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/connect"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// newConnectLab returns a lab with nft and balancing at connect(), the manager that keeps it, and a service. Commands run
// before the agent, in a mount namespace with it.
func newConnectLab(t *testing.T, settings, commands string) (h *host, l *netlab.Lab, m *manager, web netip.AddrPort, backend string) {
	t.Helper()
	parallel(t)
	need.Root(t)
	need.Program(t, "nft")
	h, l = newLab(t)
	h.edit("ironvip.toml", `mode = "proxy"`, "mode = \"nft\"\nconnect = \"on\"\n"+settings)
	inDirector(t, l, "ip link add ironvip0 type bridge; ip link set ironvip0 arp off; ip link set ironvip0 up")
	b := l.Backends[0].Serve("tcp", netip.AddrPortFrom(l.Backends[0].Addr4, 0))
	h.write("services.d/web.toml", fmt.Sprintf("[[service]]\nname = \"web\"\nports = [ { port = 80, node_port = \"auto\" } ]\nscheduler = \"wrr\"\nbackends = [ { address = %q, port = %d } ]\n[[service]]\nname = \"left\"\nports = [ { port = 80 } ]\nscheduler = \"fo\"\n", b.Addr(), b.Port()))
	m = newManager(t, h)
	stored := h.adjust
	h.adjust = func(cmd *exec.Cmd) { stored(cmd); beginWith(cmd, commands) }
	h.start()
	return h, l, m, netip.AddrPortFrom(netip.MustParseAddr(h.vip("web")), 80), b.String()
}

// beginWith has a program begin with commands in a mount namespace of its own.
func beginWith(cmd *exec.Cmd, commands string) {
	cmd.Args = append([]string{"unshare", "-m", "sh", "-ec", commands + `
exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/usr/bin/unshare"
}

// Balancing at connect() goes on when the agent is killed, and the next agent goes on with it; an agent without it ends it. It
// counts what it balances.
func TestConnectOutlivesTheAgent(t *testing.T) {
	h, l, m, web, backend := newConnectLab(t, "", "")
	mentions(t, "dataplane show", h.ok("dataplane", "show"), "at connect(): 4 of 5 frontends for programs of this host")
	balanced := func(when string) *netlab.Conn {
		t.Helper()
		c := must.Get(l.Director.Dial("tcp", web))(t)
		a := must.Get(c.Ask())(t)
		expect.Equal(t, fmt.Sprint(a.Name, a.Client), fmt.Sprint("backend1", c.LocalAddr()), "%s", when)
		return c
	}
	open := balanced("at first")
	h.carries("web", 1, 1, map[string]float64{backend: 1})
	mentions(t, "connections", h.ok("dataplane", "connections"), open.LocalAddr().String())
	mentions(t, "explain", h.ok("service", "explain", "web"), "at connect()")
	metrics := h.scrape()
	labels := fmt.Sprintf(`{frontend="%s/tcp",port="80/tcp",service="web"}`, web)
	for _, want := range []string{"ironvip_connect_frontends 4\n", "ironvip_service_connections_total" + labels + " 1\n", "ironvip_service_active_connections" + labels + " 1\n"} {
		expect.Contains(t, metrics, want)
	}
	stopped := make(chan int)
	asked := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-asked:
				stopped <- n
				return
			default:
				_, _ = l.Director.Ask("tcp", web)
			}
		}
	}()
	var top v1.Top
	must.Succeed(t, json.Unmarshal([]byte(h.ok("top", "--once", "-d", "1s", "-o", "json")), &top))
	close(asked)
	n := <-stopped
	must.Len(t, top.Items, 2)
	expect.Equal(t, top.Items[0].Service, "web")
	expect.Between(t, top.Items[0].Connections*top.Seconds, 1, float64(n), "connections of top")
	expect.AtLeast(t, top.Items[0].Active, 1, "open connections of top")
	m.received(h)
	h.kill()
	inDirector(t, l, "nft delete table inet ironvip_nft")
	balanced("without an agent and the rules of the dataplane").Close()

	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := l.Director.Ask("tcp", web); err != nil {
				done <- err
				return
			}
		}
	}()
	m.launchWithStore(h)
	close(stop)
	must.Succeed(t, <-done, "a program connects while the next agent begins")
	balanced("with the next agent").Close()
	_, err := open.Ask()
	must.Succeed(t, err, "a connection that was open")

	h.stop()
	h.edit("ironvip.toml", `connect = "on"`, `connect = "off"`)
	m.launchWithStore(h)
	m.await(h, "FDSTOREREMOVE=1", 2)
	expect.False(t, strings.Contains(h.ok("dataplane", "show"), "connect()"), "dataplane show mentions connect()")
	h.reaches(l.Director, "tcp", web.Addr().String(), 80, "backend1") // by nft
	_, err = open.Ask()
	must.Succeed(t, err, "a connection of before")
}

// Programs in other network namespaces are served by choice, and node ports at loopback addresses to those of the host. The
// agent finds a cgroup of this test alone, so that it serves no other program of this machine.
func TestConnectOfContainers(t *testing.T) {
	need.Root(t)
	root := must.Get(connect.Cgroup())(t)
	name := fmt.Sprintf("ironvip-containers-%d", os.Getpid())
	need.ControlGroup(t, root, name)
	own := filepath.Join(root, name)
	must.Succeed(t, os.Mkdir(own, 0o755))
	t.Cleanup(func() { expect.Succeed(t, os.Remove(own)) })
	h, l, m, web, _ := newConnectLab(t, `connect_namespaces = "all"`, "mount --bind "+own+" "+root)
	ask := func(n *netlab.Node, cgroup, at string) string {
		out, err := n.Output("bash", "-c", fmt.Sprintf("echo $$ > %s/cgroup.procs; exec 3<>/dev/tcp/%s && echo ? >&3 && head -1 <&3", cgroup, strings.ReplaceAll(at, ":", "/")))
		return fmt.Sprint(out, err)
	}
	_, port, _ := strings.Cut(h.ok("dataplane", "show"), l.Director.Addr4.String()+":")
	port, _, _ = strings.Cut(port, "/")
	m.received(h)
	h.kill()
	inDirector(t, l, "nft delete table inet ironvip_nft")
	mentions(t, "a container", ask(l.Client, own, web.String()), "backend1")
	mentions(t, "a container outside of the cgroup", ask(l.Client, root, web.String()), "exit status")
	mentions(t, "a node port of the host", ask(l.Director, own, "127.0.0.1:"+port), "backend1")
	mentions(t, "loopback of a container", ask(l.Client, own, "127.0.0.1:"+port), "refused")
}

// Without cgroups of version 2, mode on is refused, mode auto leaves all to the dataplane, and doctor names the remedy.
func TestConnectWithoutCgroups(t *testing.T) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	h.adjust = func(cmd *exec.Cmd) { beginWith(cmd, "mount -t tmpfs none /sys/fs/cgroup") }
	h.edit("ironvip.toml", `mode = "`+mode+`"`, `mode = "`+mode+`"
connect = "on"`)
	const reason = "there are no cgroups of version 2 at /sys/fs/cgroup"
	mentions(t, "connect = on", h.fails(), `dataplane.connect = "on" can't work here: `+reason, "hint: ")
	doctor := func() string {
		cmd := exec.Command(bin(t), "doctor", "--config", h.dir)
		h.adjust(cmd)
		out, _ := cmd.CombinedOutput() // it finds other things, too
		return string(out)
	}
	mentions(t, "doctor", doctor(), "FAIL  dataplane.connect can't work: "+reason, "mount -t cgroup2 none /sys/fs/cgroup/unified")
	h.edit("ironvip.toml", `"on"`, `"auto"`)
	h.start()
	mentions(t, "dataplane show", h.ok("dataplane", "show"), "not at connect(): "+reason)
	mentions(t, "doctor", doctor(), "WARN  dataplane.connect can't work: "+reason)
	h.serves(h.vip("web")+":8080", "a")
}

// Without the rights, mode on is refused, and mode auto leaves all to the dataplane and says why.
func TestConnectWithoutRights(t *testing.T) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	h.belongsTo(nobody)
	h.adjust = func(cmd *exec.Cmd) {
		cmd.Path = h.publicBinary()
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	h.edit("ironvip.toml", `mode = "`+mode+`"`, `mode = "`+mode+`"
connect = "sometimes"`)
	mentions(t, "a wrong value", h.fails(), "ironvip.toml:8", "dataplane.connect", `"sometimes"`, "auto")
	h.edit("ironvip.toml", `"sometimes"`, `"on"`)
	mentions(t, "connect = on", h.fails(), `dataplane.connect = "on" can't work here`, "lacks CAP_BPF and CAP_NET_ADMIN", "hint: ")
	h.edit("ironvip.toml", `"on"`, `"auto"`)
	h.start()
	mentions(t, "dataplane show", h.ok("dataplane", "show"), "not at connect(): this process lacks CAP_BPF")
	h.serves(h.vip("web")+":8080", "a")
}
