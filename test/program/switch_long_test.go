//go:build system && long

package program

import (
	"errors"
	"fmt"
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
	"github.com/ironvip/ironvip/test/wait"
)

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
			err := wait.OrError(t, wait.Timeout, "the dataplane has its table", func() (err error) {
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
