//go:build linux

// Package routers runs real routing daemons in the namespaces of test/netlab: BIRD, FRR, GoBGP and
// ExaBGP, from Debian's packages.
//
// Its inputs are a node and a configuration. Every daemon has its own folder with its sockets and
// its log, which is printed if the test fails, and ends with the test. The tests of this package
// show that announce/bgp, announce/bfd and announce/routes work with these daemons.
package routers

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// Daemon is a routing daemon in a namespace.
type Daemon struct {
	*process.Process
	t    testing.TB
	name string
	dir  string
}

// start starts a program in a node, with dir for its files.
func start(t testing.TB, n *netlab.Node, dir, name, bin string, args ...string) *Daemon {
	t.Helper()
	log := filepath.Join(dir, filepath.Base(name)+".log")
	d := &Daemon{process.New(bin, log, n, args...), t, name, dir}
	t.Cleanup(func() {
		d.Kill()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, d.LogEnd(4000))
		}
	})
	d.StartAgain()
	return d
}

// StartAgain starts the daemon after its end.
func (d *Daemon) StartAgain() {
	d.t.Helper()
	if err := d.Start(); err != nil {
		d.t.Fatalf("%s: %v", d.name, err)
	}
}

// guard ends the daemon if this process ends without its cleanup. The kernel does that for other
// daemons, but not for one that changes its user.
func (d *Daemon) guard() {
	d.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("read x; kill -9 %d", d.Pid()))
	_, err := cmd.StdinPipe() // closed at the end of this process
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { // before the daemon's end, whose id may then be used again
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// folder returns a new folder that a daemon with its own user can use.
func folder(t testing.TB, owner string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "router")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if owner == "" {
		return dir
	}
	u, err := user.Lookup(owner)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// query runs a program that talks to a daemon, and returns its output.
func query(bin string, args ...string) (string, error) {
	out, err := exec.Command(bin, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(bin), strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Bird is BIRD 2.
type Bird struct {
	*Daemon
	birdc, socket string
	config        string
}

// StartBird starts BIRD with a configuration. The protocols device and the router ID are given; an
// argument -R (graceful restart) may be added.
func StartBird(t testing.TB, n *netlab.Node, config string, args ...string) *Bird {
	t.Helper()
	bird, birdc := need.Daemon(t, "bird"), need.Daemon(t, "birdc")
	dir := folder(t, "")
	b := &Bird{birdc: birdc, socket: filepath.Join(dir, "bird.ctl"), config: filepath.Join(dir, "bird.conf")}
	write(t, dir, "bird.conf", birdHead+config)
	b.Daemon = start(t, n, dir, "bird", bird, append([]string{"-f", "-c", b.config, "-s", b.socket, "-P", filepath.Join(dir, "bird.pid")}, args...)...)
	b.await()
	return b
}

// birdHead begins each configuration.
const birdHead = "log stderr all;\nprotocol device { scan time 1; }\n"

// Configure replaces the configuration.
func (b *Bird) Configure(config string) {
	b.t.Helper()
	write(b.t, filepath.Dir(b.config), "bird.conf", birdHead+config)
	b.Ask("configure")
}

func (b *Bird) await() {
	b.t.Helper()
	wait.For(b.t, "BIRD answers", func() error {
		if b.Pid() == 0 {
			b.t.Fatalf("BIRD ended: %s", b.LogEnd(2000))
		}
		_, err := query(b.birdc, "-s", b.socket, "show", "status")
		return err
	})
}

// StartAgain starts BIRD after its end, and waits until it answers.
func (b *Bird) StartAgain() {
	b.t.Helper()
	b.Daemon.StartAgain()
	b.await()
}

// Ask runs a command of birdc.
func (b *Bird) Ask(command ...string) string {
	b.t.Helper()
	out, err := query(b.birdc, append([]string{"-s", b.socket}, command...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// SinceError is how much two answers of Since for the same session can differ: BIRD computes the time anew for each.
const SinceError = 20 * time.Millisecond

// Since returns the time of day since which a protocol is in its state.
func (b *Bird) Since(protocol string) time.Duration {
	b.t.Helper()
	at, err := time.Parse("15:04:05.000", sinceOf.FindString(b.Ask("show", "protocols", protocol)))
	if err != nil {
		b.t.Fatal(err)
	}
	return at.Sub(at.Truncate(24 * time.Hour))
}

var sinceOf = regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}`)

// Count returns how many routes a "show route" command with the arguments counts.
func (b *Bird) Count(args ...string) int {
	b.t.Helper()
	total := 0
	for line := range strings.Lines(b.Ask(append(append([]string{"show", "route"}, args...), "count")...)) {
		var n int
		if _, err := fmt.Sscanf(line, "%d of", &n); err == nil && !strings.HasPrefix(line, "Total") {
			total += n
		}
	}
	return total
}

// FRR is a set of FRR's daemons: zebra and others.
type FRR struct {
	t       testing.TB
	dir     string
	vtysh   string
	Daemons map[string]*Daemon
}

// StartFRR starts zebra and the named daemons, with one configuration for all of them.
func StartFRR(t testing.TB, n *netlab.Node, config string, daemons ...string) *FRR {
	t.Helper()
	vtysh := need.Daemon(t, "vtysh")
	f := &FRR{t: t, dir: folder(t, "frr"), vtysh: vtysh, Daemons: map[string]*Daemon{}}
	for _, name := range append([]string{"zebra"}, daemons...) {
		args := []string{"-f", write(t, f.dir, name+".conf", ""), "-i", filepath.Join(f.dir, name+".pid"), "--vty_socket", f.dir,
			"-z", filepath.Join(f.dir, "zserv.api"), "-A", "127.0.0.1", "-P", "0", "--log", "stdout"}
		if name == "bfdd" {
			args = append(args, "--bfdctl", filepath.Join(f.dir, "bfdd.sock"))
		}
		f.Daemons[name] = start(t, n, f.dir, name, need.Daemon(t, name), args...)
		f.Daemons[name].guard()
		f.await(name)
	}
	f.Configure(config)
	return f
}

func (f *FRR) await(name string) {
	f.t.Helper()
	wait.For(f.t, name+" answers", func() error {
		if f.Daemons[name].Pid() == 0 {
			f.t.Fatalf("%s ended: %s", name, f.Daemons[name].LogEnd(2000))
		}
		_, err := query(f.vtysh, "--vty_socket", f.dir, "-d", name, "-c", "show version")
		return err
	})
}

// Configure applies configuration lines.
func (f *FRR) Configure(config string) {
	f.t.Helper()
	path := write(f.t, f.dir, "vtysh.conf", config)
	if _, err := query(f.vtysh, "--vty_socket", f.dir, "-f", path); err != nil {
		f.t.Fatal(err)
	}
}

// Ask runs a command of vtysh.
func (f *FRR) Ask(command string) string {
	f.t.Helper()
	out, err := query(f.vtysh, "--vty_socket", f.dir, "-c", command)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// GoBGP is gobgpd.
type GoBGP struct {
	*Daemon
	n   *netlab.Node
	ctl string
}

// StartGoBGP starts gobgpd with a configuration in TOML.
func StartGoBGP(t testing.TB, n *netlab.Node, config string) *GoBGP {
	t.Helper()
	dir := folder(t, "")
	g := &GoBGP{n: n, ctl: need.Daemon(t, "gobgp")}
	path := write(t, dir, "gobgpd.toml", config)
	g.Daemon = start(t, n, dir, "gobgpd", need.Daemon(t, "gobgpd"), "-f", path, "--api-hosts", "127.0.0.1:50051", "--pprof-disable")
	wait.For(t, "gobgpd answers", func() error { _, err := g.ask("global"); return err })
	return g
}

func (g *GoBGP) ask(args ...string) (out string, err error) {
	g.n.Do(func() { out, err = query(g.ctl, args...) }) // its API is on TCP in the namespace
	return out, err
}

// Ask runs a command of gobgp.
func (g *GoBGP) Ask(args ...string) string {
	g.t.Helper()
	out, err := g.ask(args...)
	if err != nil {
		g.t.Fatal(err)
	}
	return out
}

// ExaBGP is exabgp.
type ExaBGP struct {
	*Daemon
	messages string
}

// StartExaBGP starts ExaBGP with the lines of a neighbor, which passes messages to the process
// "log".
func StartExaBGP(t testing.TB, n *netlab.Node, neighbor string) *ExaBGP {
	t.Helper()
	dir := folder(t, "")
	x := &ExaBGP{messages: filepath.Join(dir, "messages")}
	script := write(t, dir, "log.sh", "exec 3>&1\nexec cat >"+x.messages) // ExaBGP takes the end of its output as its death
	config := write(t, dir, "exabgp.conf", fmt.Sprintf("process log { run /bin/sh %s; encoder json; }\nneighbor %s\n", script, neighbor))
	x.Daemon = start(t, n, dir, "exabgp", "/usr/bin/env", "exabgp.tcp.bind=0.0.0.0 ::", "exabgp.tcp.port=179", "exabgp.daemon.user=root",
		"exabgp.cli.pipe=", "exabgp.cli.socket=", need.Daemon(t, "exabgp"), config)
	return x
}

// Messages returns everything that ExaBGP has received, as JSON.
func (x *ExaBGP) Messages() string {
	b, _ := os.ReadFile(x.messages)
	return string(b)
}
