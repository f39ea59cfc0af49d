//go:build vm

package selftest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/wait"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv("IRONVIP_VM") != "1" {
		fmt.Fprintln(os.Stderr, "not in the VM: run go test -tags vm -exec .cache/vm/vmrun")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestIPVS(t *testing.T) {
	if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
		t.Fatalf("netlink family IPVS: %v", err)
	}
	t.Cleanup(func() { run(t, "ipvsadm", "-C") })
	for i, scheduler := range strings.Fields("rr wrr lc wlc sh mh sed nq fo dh") {
		run(t, "ipvsadm", "-A", "-t", fmt.Sprintf("10.9.9.9:%d", 1000+i), "-s", scheduler)
	}
	run(t, "ipvsadm", "-a", "-t", "10.9.9.9:1000", "-r", "127.0.0.1:80", "-m", "-w", "3")
	run(t, "ipvsadm", "-A", "-u", "[fd00::9]:53", "-s", "rr")
	out := run(t, "ipvsadm", "-Sn")
	for _, want := range []string{"-A -t 10.9.9.9:1000 -s rr\n", "-a -t 10.9.9.9:1000 -r 127.0.0.1:80 -m -w 3\n", "-A -u [fd00::9]:53 -s rr\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("ipvsadm -Sn has no %q:\n%s", want, out)
		}
	}
}

func TestNftables(t *testing.T) {
	rules := `table inet selftest {
		set vips { type ipv4_addr . inet_proto . inet_service; }
		chain post { type nat hook postrouting priority 100; ct mark 1 masquerade; }
		chain in { type filter hook input priority 0; ip daddr . meta l4proto . th dport @vips reject; ip6 daddr fd00::9 reject; }
	}`
	t.Cleanup(func() { run(t, "nft", "delete", "table", "inet", "selftest") })
	run(t, "nft", rules)
	var listed struct{ Nftables []map[string]any }
	if err := json.Unmarshal([]byte(run(t, "nft", "-j", "list", "table", "inet", "selftest")), &listed); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, object := range listed.Nftables {
		for kind := range object {
			count[kind]++
		}
	}
	if count["table"] != 1 || count["set"] != 1 || count["chain"] != 2 || count["rule"] != 3 {
		t.Errorf("nft lists %v", count)
	}
}

// TCP passes between two namespaces of ip with a veth pair, in both families.
func TestNamespacesCarryTCP(t *testing.T) {
	for _, ns := range []string{"left", "right"} {
		run(t, "ip", "netns", "add", ns)
		t.Cleanup(func() { run(t, "ip", "netns", "del", ns) })
		run(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	run(t, "ip", "link", "add", "v0", "netns", "left", "type", "veth", "peer", "name", "v1", "netns", "right")
	for ns, a := range map[string][3]string{"left": {"v0", "10.1.0.1/24", "fd01::1/64"}, "right": {"v1", "10.1.0.2/24", "fd01::2/64"}} {
		run(t, "ip", "-n", ns, "addr", "add", a[1], "dev", a[0])
		run(t, "ip", "-n", ns, "addr", "add", a[2], "dev", a[0], "nodad")
		run(t, "ip", "-n", ns, "link", "set", a[0], "up")
	}
	for _, host := range []string{"10.1.0.2", "fd01::2"} {
		address := net.JoinHostPort(host, "7777")
		var l net.Listener
		inNamespace(t, "right", func() (err error) {
			l, err = net.Listen("tcp", address)
			return err
		})
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err != nil {
				return // closed: the test is over
			}
			defer c.Close()
			io.Copy(c, c)
		}()
		var c net.Conn
		inNamespace(t, "left", func() (err error) {
			c, err = net.DialTimeout("tcp", address, 10*time.Second)
			return err
		})
		defer c.Close()
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 5)
		if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "hello" {
			t.Errorf("%s: got %q, %v", address, answer, err)
		}
	}
}

// inNamespace runs f on a thread of that namespace. The thread isn't reused: it ends with its
// goroutine.
func inNamespace(t *testing.T, name string, f func() error) {
	t.Helper()
	errs := make(chan error)
	go func() {
		runtime.LockOSThread()
		ns, err := netns.GetFromName(name)
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err == nil {
			err = f()
		}
		errs <- err
	}()
	if err := <-errs; err != nil {
		t.Fatalf("in %s: %v", name, err)
	}
}

func TestUnshare(t *testing.T) {
	cmd := exec.Command("ip", "-j", "link")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var links []struct{ Ifname string }
	if err := json.Unmarshal(out, &links); err != nil || links[0].Ifname != "lo" {
		t.Errorf("a new namespace lists %s (%v)", out, err)
	}
}

func TestConntrack(t *testing.T) { run(t, "conntrack", "-L") }

func TestIPSet(t *testing.T) {
	run(t, "ipset", "create", "selftest", "hash:ip")
	run(t, "ipset", "destroy", "selftest")
}

func TestSurroundings(t *testing.T) {
	if b, err := os.ReadFile("testdata/hello.txt"); err != nil || string(b) != "shipped\n" {
		t.Errorf("testdata: %q, %v", b, err)
	}
	if wd, err := os.Getwd(); err != nil || filepath.Base(wd) != "selftest" {
		t.Errorf("working directory: %s, %v", wd, err)
	}
	// Callers set both variables to the same value.
	if a, b := os.Getenv("IRONVIP_SELFTEST_A"), os.Getenv("IRONVIP_SELFTEST_B"); a != b {
		t.Errorf("environment: %q and %q", a, b)
	}
	if os.Getpid() == 1 || os.Getuid() != 0 {
		t.Errorf("pid %d, uid %d", os.Getpid(), os.Getuid())
	}
	if err := os.WriteFile("/tmp/x", nil, 0o600); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(os.Stdin); err != nil || len(b) != 0 {
		t.Errorf("stdin: %q, %v", b, err)
	}
	if now := time.Now().Year(); now < 2024 {
		t.Errorf("the clock says %d", now)
	}
	for _, host := range []string{"localhost", "127.0.0.1"} {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Error(err)
			continue
		}
		l.Close()
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Max < 65536 {
		t.Errorf("open files: %+v, %v", limit, err)
	}
	for _, dir := range []string{"/proc/self", "/sys/class/net/lo", "/dev/pts", "/run/netns", "/var/run/netns"} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// A child whose parent ended belongs to pid 1, which must not keep it as a zombie.
func TestOrphansAreReaped(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], 0); err != nil { // inherited: it ends when the last descendant does
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestOrphanHelper$")
	cmd.Env = append(os.Environ(), "SELFTEST_ORPHAN=parent")
	out, err := cmd.Output()
	unix.Close(fds[1])
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n, err := unix.Read(fds[0], make([]byte, 1)); n != 0 || err != nil {
		t.Fatalf("pipe: %d, %v", n, err)
	}
	var pid int
	if _, err := fmt.Sscanf(string(out), "orphan %d", &pid); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wait.Until(t, fmt.Sprintf("process %d is gone", pid), func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		return os.IsNotExist(err)
	})
}

func TestOrphanHelper(t *testing.T) {
	switch os.Getenv("SELFTEST_ORPHAN") {
	case "parent":
		cmd := exec.Command(os.Args[0], "-test.run=^TestOrphanHelper$")
		cmd.Env = append(os.Environ(), "SELFTEST_ORPHAN=child")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("orphan %d\n", cmd.Process.Pid)
		os.Exit(0)
	case "child":
		time.Sleep(50 * time.Millisecond)
		os.Exit(0)
	}
}
