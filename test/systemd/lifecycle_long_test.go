//go:build vm && long

package systemd

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

const (
	older, newer = "1.0.0", "1.1.0"
	config       = "/etc/ironvip/ironvip.toml"
	services     = "/etc/ironvip/services.d/web.toml"
)

var web = netip.MustParseAddrPort("10.96.0.10:80")

// TestLifecycle takes a host from the installation to the purge, with IPVS. A client asks during
// upgrades, and one connection stays open. Then the host moves between the dataplanes.
func TestLifecycle(t *testing.T) {
	h := newHost(t)
	before := kernelState(t)

	h.install(older)
	h.unit("inactive", "enabled")
	h.restored("an installation without configuration", before)

	h.start("ipvs")
	h.replace(newer, older)

	pid := h.pid()
	run(t, "systemctl", "kill", "--signal=KILL", "ironvip")
	wait.For(t, "a new process", func() error {
		if now := h.pid(); now == pid || now == "0" {
			return fmt.Errorf("the main process is %s", now)
		}
		return nil
	})
	h.running(older)
	h.served()

	h.switches()
	run(t, "dpkg", "--remove", "ironvip")
	h.restored("the removal", before)
	exist(t, true, config, "/var/lib/ironvip/ironvip.db")

	h.install(newer)
	h.running(newer)
	h.served()

	run(t, "dpkg", "--purge", "ironvip")
	h.restored("the purge", before)
	exist(t, false, "/etc/ironvip", "/var/lib/ironvip", "/usr/bin/ironvip", "/etc/systemd/system/multi-user.target.wants/ironvip.service")
	if passwd := read(t, "/etc/passwd"); strings.Contains(passwd, "ironvip") {
		t.Errorf("the user is still there:\n%s", passwd)
	}

	// The userspace proxy carries the connections itself.
	h.install(older)
	h.start("proxy")
	h.bySkLookup()
	h.replace(newer)
	h.bySkLookup()
	run(t, "dpkg", "--purge", "ironvip")
	h.restored("the purge with the userspace proxy", before)
}

// start writes the configuration and starts the agent.
func (h *host) start(mode string) {
	h.t.Helper()
	h.configure(mode)
	run(h.t, "systemctl", "start", "ironvip")
	h.running(older)
	h.served()
}

// bySkLookup checks that the unit allows the userspace proxy what sk_lookup needs.
func (h *host) bySkLookup() {
	h.t.Helper()
	if out := run(h.t, "ironvip", "dataplane", "show"); !strings.Contains(out, "clients arrive by sk_lookup") {
		h.t.Errorf("the proxy of the packaged unit doesn't use sk_lookup:\n%s", out)
	}
}

// The pauses of a client between two requests. In the emulated machine, a client without pauses takes most of the
// processor from dpkg.
const (
	seldom = 500 * time.Millisecond // while files are unpacked
	often  = 20 * time.Millisecond  // while the new version takes over
)

// replace installs versions one after the other, in the two steps of dpkg --install, while a client asks.
func (h *host) replace(versions ...string) {
	h.t.Helper()
	kept := h.connect()
	for _, version := range versions {
		asking := h.ask()
		run(h.t, "dpkg", "--unpack", file(version)) // takes most of the time, and concerns no client
		asking.pause.Store(int64(often))
		run(h.t, "dpkg", "--configure", "ironvip")
		h.installed(version)
		h.running(version)
		asking.end()
		if _, err := kept.Ask(); err != nil {
			h.t.Errorf("the connection that was open before version %s: %v", version, err)
		}
	}
}

// restored checks that the kernel has what it had before.
func (h *host) restored(after, before string) {
	h.t.Helper()
	if now := kernelState(h.t); now != before {
		h.t.Errorf("%s left something in the kernel, or took too much. Before:\n%s\nnow:\n%s", after, before, now)
	}
}

// host is this machine, with a client and two backends beside it.
type host struct {
	*netlab.Lab
	t     *testing.T
	agent *client.Client
}

func newHost(t *testing.T) *host {
	agent, err := client.New(client.DefaultAddr, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{netlab.NewHere(t), t, agent}
	t.Cleanup(func() {
		agent.Close()
		if t.Failed() {
			out, _ := command("journalctl", "--no-pager", "--output=short-precise", "--lines=100", "--unit=ironvip", "--unit=ironvip-announcer")
			t.Logf("the end of the logs of the agent and the announcer:\n%s", out)
			out, _ = command("ironvip", "source", "list", "--output=wide")
			t.Logf("its sources:\n%s", out)
		}
	})
	for _, b := range h.Backends {
		b.Serve("tcp", netip.AddrPortFrom(b.Addr4, 8080))
	}
	return h
}

func (h *host) install(version string) {
	h.t.Helper()
	run(h.t, "dpkg", "--install", file(version))
	h.installed(version)
}

func file(version string) string { return "/packages/ironvip_" + version + "-1_amd64.deb" }

func (h *host) installed(version string) {
	h.t.Helper()
	if out := run(h.t, "ironvip", "version"); !strings.Contains(out, version) {
		h.t.Errorf("version %s is installed, and the program says %s", version, out)
	}
}

// unit checks the state of the agent's unit.
func (h *host) unit(active, enabled string) {
	h.t.Helper()
	for command, want := range map[string]string{"is-active": active, "is-enabled": enabled} {
		if out, _ := commandOut("systemctl", command, "ironvip"); strings.TrimSpace(out) != want {
			h.t.Errorf("systemctl %s: %q instead of %q", command, strings.TrimSpace(out), want)
		}
	}
}

func (h *host) configure(mode string) {
	h.t.Helper()
	var backends []string
	for _, b := range h.Backends {
		backends = append(backends, fmt.Sprintf("{ address = %q }", b.Addr4))
	}
	write(h.t, config, fmt.Sprintf("[dataplane]\nmode = %q\n[ipam]\npod_cidrs = [\"10.244.0.0/16\"]\n[[source]]\ntype = \"static\"\npath = \"/etc/ironvip/services.d\"\n[[pool]]\nname = \"vips\"\ncidrs = [\"10.96.0.0/24\"]\n", mode))
	write(h.t, services, fmt.Sprintf("[[service]]\nname = \"web\"\nvips = [%q]\nports = [ { port = %d, target_port = 8080 } ]\nbackends = [ %s ]\n",
		web.Addr(), web.Port(), strings.Join(backends, ", ")))
}

// running waits until systemd has the agent as active, and the agent answers with a version.
func (h *host) running(version string) {
	h.t.Helper()
	wait.For(h.t, "the agent runs with version "+version, func() error {
		out, err := commandOut("ironvip", "status", "--output=json")
		var s struct{ Version string }
		if json.Unmarshal([]byte(out), &s) != nil {
			return fmt.Errorf("ironvip status: %v: %s", err, out)
		}
		if !strings.Contains(s.Version, version) {
			return fmt.Errorf("the agent's version is %s", s.Version)
		}
		return nil
	})
	h.unit("active", "enabled")
}

func (h *host) pid() string {
	h.t.Helper()
	return strings.TrimSpace(run(h.t, "systemctl", "show", "--property=MainPID", "--value", "ironvip"))
}

// served waits until the service answers.
func (h *host) served() {
	h.t.Helper()
	wait.For(h.t, "the service answers", func() error {
		_, err := h.Client.Ask("tcp", web)
		return err
	})
}

func (h *host) connect() *netlab.Conn {
	h.t.Helper()
	c, err := h.Client.Dial("tcp", web)
	if err == nil {
		_, err = c.Ask()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// asking is a client that opens one connection after another.
type asking struct {
	t             *testing.T
	stop          chan struct{}
	done          chan struct{}
	pause         atomic.Int64 // a time.Duration
	asked, failed int
	first         error
}

func (h *host) ask() *asking {
	a := &asking{t: h.t, stop: make(chan struct{}), done: make(chan struct{})}
	a.pause.Store(int64(seldom))
	go func() {
		defer close(a.done)
		for {
			select {
			case <-a.stop:
				return
			case <-time.After(time.Duration(a.pause.Load())):
			}
			a.asked++
			if _, err := h.Client.Ask("tcp", web); err != nil {
				a.failed++
				if a.first == nil {
					a.first = err
				}
			}
		}
	}()
	return a
}

// end stops the client, and checks that every request was answered.
func (a *asking) end() {
	a.t.Helper()
	close(a.stop)
	<-a.done
	if a.failed > 0 || a.asked < 10 {
		a.t.Errorf("%d of %d requests failed, the first one with: %v", a.failed, a.asked, a.first)
	}
	a.t.Logf("%d requests", a.asked)
}

// kernelState is what ironvip changes in the kernel, besides its sysctls.
func kernelState(t *testing.T) string {
	t.Helper()
	return run(t, "nft", "list", "ruleset") + run(t, "ipvsadm", "--save", "--numeric") + run(t, "ip", "-brief", "address") +
		run(t, "ip", "rule") + run(t, "ip", "route", "show", "table", "all")
}

func exist(t *testing.T, want bool, files ...string) {
	t.Helper()
	for _, f := range files {
		if _, err := os.Lstat(f); (err == nil) != want {
			t.Errorf("%s exists: %t, want %t", f, !want, want)
		}
	}
}
