//go:build system && !vm

package program

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/takeover"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// listKernel prints what dataplanes have in the kernel.
const listKernel = "nft list tables"

// newNFTLab returns a lab where nft and the proxy run, with mode proxy and the two services.
func newNFTLab(t *testing.T) (h *host, l *netlab.Lab, tcp, udp netip.AddrPort) {
	t.Helper()
	parallel(t)
	need.Root(t)
	need.Program(t, "nft")
	h, l = newLab(t)
	inDirector(t, l, "nft add table inet neighbour; ip link add ironvip0 type bridge; ip link set ironvip0 arp off; ip link set ironvip0 up")
	tcp, udp = twoServices(t, h, l)
	return h, l, tcp, udp
}

// A restart with another mode removes what the dataplane before has in the kernel, once the new one serves, and with its
// last connection. Open connections of nft continue.
func TestRestartWithAnotherMode(t *testing.T) {
	h, l, tcp, udp := newNFTLab(t)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "nft"`)
	h.start()
	bothServe(t, h, l, tcp, udp)
	open, lives := opened(t, l, tcp)
	h.stop()
	lives("without an agent")

	h.edit("ironvip.toml", `mode = "nft"`, `mode = "proxy"`)
	h.start()
	h.status("OK", "former", "nft drains: 1 connection by tcp")
	lives("with the proxy")
	bothServe(t, h, l, tcp, udp)
	h.kill()
	h.start() // goes on where the last one was
	h.status("OK", "former", "nft drains: 1 connection by tcp")
	lives("after kill -9")
	drains(t, h, l, open, "1", true)
	inKernel(t, h, l, []string{"neighbour"}, []string{"ironvip_nft"})
	happened(t, h, "dataplane_removed", "proxy replaces nft: everything that was left is removed")

	h.stop()
	inDirector(t, l, "nft add table inet ironvip") // as of IPVS, which has no services any more
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "nft"`)
	h.start()
	h.reaches(l.Client, "tcp", tcp.Addr().String(), 80, l.Backends[0].Name, l.Backends[1].Name)
	inKernel(t, h, l, []string{"neighbour", "ironvip_nft"}, []string{"inet ironvip\n"})

	// Mode auto keeps what the host ran.
	h.stop()
	h.edit("ironvip.toml", `mode = "nft"`, `mode = "proxy"`)
	h.start()
	inKernel(t, h, l, []string{"neighbour"}, []string{"ironvip_nft"})
	h.stop()
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "auto"`)
	h.start()
	mentions(t, "auto", h.ok("dataplane", "show"), "proxy", `this host ran it before; nft can run, too: dataplane.mode = "nft" selects it`)
}

// A take-over with another mode moves a host while clients come: none is refused, and open connections continue in both
// directions, those of the proxy in the old process, which every later agent shows until they end, also one that
// starts after kill -9. They end there when their clients end them. A killed agent goes on in the new mode.
func TestTakeOverWithAnotherMode(t *testing.T) {
	h, l, tcp, udp := newNFTLab(t)
	h.start()
	stop := keepAsking(l, tcp, udp)
	ofProxy, proxied := opened(t, l, tcp)
	idle, _ := opened(t, l, tcp)
	process := h.cmd.Process.Pid
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "nft"`)
	next := h.takeOver()
	next.status("OK", "former", fmt.Sprintf("proxy drains in process %d: 2 connections by tcp", process))
	idle.Close() // its first packet since nft came
	next.status("OK", "former", fmt.Sprintf("proxy drains in process %d: 1 connection by tcp", process))
	mentions(t, "the dataplane", next.ok("dataplane", "show"), "nft", fmt.Sprintf("proxy drains in process %d: 1 connection, ends in", process))
	mentions(t, "the metrics", next.scrape(), `ironvip_dataplane_former_connections{dataplane="proxy"} 1`)
	proxied("with nft")
	drains(t, next, l, ofProxy, "1", false)
	second := next.takeOver()
	next.ended() // at once, because its connections are in the kernel
	relays := func(h *host, when string) {
		t.Helper()
		h.status("OK", "former", fmt.Sprintf("proxy drains in process %d: 1 connection by tcp", process))
		drains(t, h, l, ofProxy, "1", false)
		back := h.cli("dataplane", "switch", "proxy", "--plan")
		if back.code != 1 {
			t.Errorf("%s: plan to go back to the proxy: exit %d", when, back.code)
		}
		mentions(t, when, back.stdout, fmt.Sprintf("process %d of an earlier proxy", process))
		proxied(when)
	}
	relays(second, "with nft in another process")
	second.kill()
	second.adjust = nil
	second.start()
	relays(second, "after kill -9")
	second = second.takeOver()
	relays(second, "after a take-over from an agent that started alone")
	ofProxy.Close()
	h.ended() // until then, it has the ports of UDP
	second.eventually("no dataplane drains", func() error {
		if now := second.ok("status"); strings.Contains(now, "former") {
			return errors.New(now)
		}
		return nil
	})
	happened(t, second, "dataplane_retired", "dataplane_removed", fmt.Sprintf("nft replaces proxy: process %d has ended", process))

	_, translated := opened(t, l, tcp)
	h.edit("ironvip.toml", `mode = "nft"`, `mode = "proxy"`)
	third := second.takeOver()
	third.status("OK", "former", "nft drains")
	translated("back with the proxy")
	if err := stop(); err != nil {
		t.Error(err)
	}
	third.kill()
	third.adjust = nil
	third.start()
	third.status("OK", "former", "nft drains")
	translated("after kill -9")
}

// `dataplane switch` moves a host as its plan says, without a refused client, and mode auto keeps that.
func TestSwitchCommand(t *testing.T) {
	h, l, tcp, udp := newNFTLab(t)
	h.start()
	refused := h.cli("dataplane", "switch", "nft")
	if refused.code != 5 {
		t.Errorf("exit %d although dataplane.mode contradicts", refused.code)
	}
	mentions(t, "the refusal", refused.stderr, "ironvip.toml:", `dataplane.mode = "proxy" contradicts`, `set dataplane.mode to "nft", or to "auto"`)
	if same := h.ok("dataplane", "switch", "proxy"); same != "this host runs proxy\n" {
		t.Errorf("to the same: %s", same)
	}
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "auto"`)
	stop := keepAsking(l, tcp, udp)
	c, lives := opened(t, l, tcp)
	idle, err := l.Client.Dial("tcp", tcp)
	if err != nil {
		t.Fatal(err)
	}
	first, err := idle.Ask()
	if err != nil {
		t.Fatal(err)
	}
	plan := h.cli("dataplane", "switch", "nft", "--plan")
	if plan.code != 10 {
		t.Errorf("plan: exit %d", plan.code)
	}
	mentions(t, "the plan", plan.stdout, "proxy -> nft", "tcp", "continue until they end, for 10m0s at most", "udp", "move with their next datagram")
	process := h.cmd.Process.Pid
	mentions(t, "the switch", h.ok("dataplane", "switch", "nft"), "proxy -> nft")
	killSuccessor := sync.OnceFunc(func() {
		_, after, _ := strings.Cut(h.log.String(), `msg="handed over" pid=`)
		pid, _, _ := strings.Cut(after, " ")
		n, err := strconv.Atoi(pid)
		if err == nil {
			err = syscall.Kill(n, syscall.SIGKILL)
		}
		if err != nil {
			t.Errorf("kill the successor: %v", err)
		}
	})
	t.Cleanup(killSuccessor) // the end of h waits for it, because both have its log
	h.status("OK", "former", fmt.Sprintf("proxy drains in process %d: ", process))
	lives("with nft")
	comesFromItsPort(t, l, tcp, first)
	if a, err := idle.Ask(); err != nil || a != first {
		t.Errorf("a new client came from the port of an open connection, which is answered by %v, %v; at first by %v", a, err, first)
	}
	if again := h.ok("dataplane", "switch", "nft"); again != "this host runs nft\n" {
		t.Errorf("once more: %s", again)
	}
	h.edit("ironvip.toml", `mode = "auto"`, `mode = "proxy"`)
	again := h.cli("dataplane", "switch", "nft")
	if again.code != 1 {
		t.Errorf("to the same, which dataplane.mode contradicts: exit %d", again.code)
	}
	mentions(t, "the contradiction", again.stdout, "this host runs nft, but the configuration does not keep it", "ironvip.toml:", `dataplane.mode = "proxy" contradicts: the next start runs that`)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "auto"`)
	back := h.cli("dataplane", "switch", "proxy")
	if back.code != 5 {
		t.Errorf("back while the earlier proxy relays: exit %d", back.code)
	}
	mentions(t, "the refusal", back.stderr, fmt.Sprintf("process %d of an earlier proxy", process))
	if err := stop(); err != nil {
		t.Error(err)
	}
	c.Close()
	idle.Close()
	h.eventually("the process of the proxy has ended", func() error {
		if now := h.ok("status"); strings.Contains(now, "former") {
			return errors.New(now)
		}
		return nil
	})
	killSuccessor()
	h.ended() // its successor had its log, too
	h.start()
	mentions(t, "after a restart", h.ok("dataplane", "show"), "nft: in sync")
}

// A client that is connecting to the proxy while the host moves to nft is accepted by it: the acknowledgment that ends its
// handshake comes late.
func TestClientsConnectDuringASwitch(t *testing.T) {
	h, l, tcp, _ := newNFTLab(t)
	h.start()
	inClient := func(command string) (err error) {
		l.Client.Do(func() {
			if out, failed := exec.Command("nft", command).CombinedOutput(); failed != nil {
				err = fmt.Errorf("%s: %w: %s", command, failed, out)
			}
		})
		return err
	}
	move := func(from, to string) {
		h.edit("ironvip.toml", fmt.Sprintf("mode = %q", from), fmt.Sprintf("mode = %q", to))
		next := h.takeOver()
		h.ended()
		h = next
	}
	wait.Undisturbed(t, "a client connects during the switch", func() error {
		if err := inClient("add table inet late; add chain inet late out { type filter hook output priority 0; }; add rule inet late out tcp flags & (syn|ack) == ack drop"); err != nil {
			t.Fatal(err)
		}
		c, err := l.Client.Dial("tcp", tcp) // has an answer to its first packet, so it is open for the client
		if err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() {
			defer c.Close()
			err := wait.Poll(t.Context(), func() (err error) {
				l.Director.Do(func() { err = exec.Command("nft", "list", "table", "inet", "ironvip_nft").Run() })
				return err
			})
			if err == nil {
				err = inClient("delete table inet late")
			}
			if err == nil {
				_, err = c.Ask()
			}
			answer <- err
		}()
		move("proxy", "nft")
		failed := <-answer
		if failed != nil { // for another round
			move("nft", "proxy")
		}
		return failed
	})
}

// A VIP has many ports, and the one that clients use is the last one that the dataplane learns of. None is refused while the
// host moves to nft, which refuses clients at the ports of a VIP that have no service.
func TestTakeOverWithManyPorts(t *testing.T) {
	h, l, tcp, udp := newNFTLab(t)
	text, err := os.ReadFile(filepath.Join(h.dir, "services.d/all.toml"))
	if err != nil {
		t.Fatal(err)
	}
	var more strings.Builder
	for i := range 1200 {
		fmt.Fprintf(&more, "[[service]]\nname = \"a%d\"\nvips = [%q]\nshare_key = \"one\"\nports = [ { port = %d } ]\nbackends = [ { address = %q } ]\nhealth = { type = \"none\" }\n",
			i, tcp.Addr(), 1000+i, l.Backends[0].Addr4)
	}
	h.write("services.d/all.toml", more.String()+string(text))
	h.start()
	h.status("OK", "dataplane", "1202 services")
	stop := keepAsking(l, tcp, udp)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "nft"`)
	h.takeOver().status("OK", "dataplane", "1202 services")
	h.ended()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// comesFromItsPort lets new clients come from the port that the proxy has a connection from, until one has the same backend.
// First is the first answer of that connection.
func comesFromItsPort(t *testing.T, l *netlab.Lab, to netip.AddrPort, first netlab.Answer) {
	t.Helper()
	second := netip.MustParsePrefix("10.77.0.3/24") // no other client has used this port there
	l.Client.AddAddr("eth0", second)
	for {
		c, err := l.Client.DialFromPort("tcp", netip.AddrPortFrom(second.Addr(), first.Client.Port()), to)
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Ask()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Conn.(*net.TCPConn).SetLinger(0) // the next one has the same port
		c.Close()
		if a.Name == first.Name {
			return
		}
	}
}

// A process that ends before it asks to take over is noticed at once, with its reason. The agent goes on, and the next
// take-over has nothing of the switch. If another process asks meanwhile, it is an ordinary take-over, too: after kill -9 of
// both, the next agent runs the dataplane before.
func TestSwitchThatFails(t *testing.T) {
	h, l, tcp, udp := newNFTLab(t)
	program := filepath.Join(h.dir, "program") // a successor that this test writes
	if err := os.Symlink(bin(t), program); err != nil {
		t.Fatal(err)
	}
	h.adjust = func(cmd *exec.Cmd) { cmd.Path, cmd.Args[0] = program, program }
	h.start()
	script := func(text string) {
		t.Helper()
		h.remove("program")
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "auto"`)
	stop := keepAsking(l, tcp, udp)
	_, lives := opened(t, l, tcp)
	for text, why := range map[string]string{
		"exit 1":                        "it ended before it took over, and gave no reason",
		"kill -9 $$":                    "it ended before it took over, and gave no reason",
		"echo asking >&3":               "it ended before it took over, and gave no reason",
		"echo asking >&3; echo why >&3": "it ended: why",
		"echo $IRONVIP_SUCCESSOR >&3":   "it ended: nft",
	} {
		script(text)
		r := h.cli("dataplane", "switch", "nft")
		if r.code != 1 || !strings.Contains(r.stderr, "not moved to nft, proxy goes on: ") || !strings.Contains(r.stderr, why) {
			t.Errorf("%s: exit %d: %s%s", text, r.code, r.stdout, r.stderr)
		}
		lives("after a switch that failed")
	}
	happened(t, h, "takeover_failed", "the process that this agent started", "it ended")
	h.remove("program")
	if err := os.Symlink(bin(t), program); err != nil {
		t.Fatal(err)
	}
	next := h.takeOver()
	mentions(t, "the next take-over", next.ok("dataplane", "show"), "proxy", "this host ran it before")

	script("echo $$ >" + h.dir + "/pid; exec sleep 1000") // never asks
	done := make(chan result, 1)
	go func() { done <- next.cli("dataplane", "switch", "nft") }()
	var hangs int
	next.eventually("the successor runs", func() (err error) {
		text, err := os.ReadFile(filepath.Join(h.dir, "pid"))
		if err == nil {
			hangs, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	ends := sync.OnceFunc(func() { _ = syscall.Kill(hangs, syscall.SIGKILL) })
	defer ends()
	refused := next.cli("dataplane", "switch", "nft")
	if refused.code != 5 || !strings.Contains(refused.stderr, "this host is moving to nft") {
		t.Errorf("a second switch: exit %d: %s", refused.code, refused.stderr)
	}
	var fake *takeover.Predecessor
	var set *sockets.Set
	l.Director.Do(func() { fake, set = next.fakeTakeOver() })
	fake.Close()
	set.Close()
	next.resumed(1)
	if r := <-done; r.code != 1 || !strings.Contains(r.stderr, "not moved to nft, proxy goes on: process ") {
		t.Errorf("another process asks: exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	ends() // it has the log of its agent
	lives("after a take-over that failed")
	if err := stop(); err != nil {
		t.Error(err)
	}
	l.Director.Do(func() { fake, set = next.fakeTakeOver() })
	next.kill()
	fake.Close()
	set.Close()
	next.adjust = nil
	next.start()
	mentions(t, "after kill -9 of both", next.ok("dataplane", "show"), "proxy", "this host ran it before")
}
