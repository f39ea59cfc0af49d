//go:build linux

package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// scenario is one page of the table. It runs once for each of its families, each time with VIPs
// that no other run uses.
type scenario struct {
	name      string
	shows     []*feature
	families  []vip.Family // nil is IPv4
	dual      bool         // VIPs of both families at once, with requests in each of families
	isolated  bool         // needs separate hosts: IPv6, wildcard listeners, addresses that are added and removed
	modules   []string     // kernel modules that it needs unless it is refused
	nodePorts string       // range of the host's addresses that serve node ports; "" is the lab's default
	pods      []place      // the places inside the pod ranges; nil is the place pod
	steps     []step
}

var both, onlyIPv6 = []vip.Family{vip.IPv4, vip.IPv6}, []vip.Family{vip.IPv6}

// every returns the table.
func every() []scenario {
	return slices.Concat(basics, choosing, topology, clients, changes, checks, forwarding, pathChecks, combined)
}

// fits reports whether the lab can run the scenario in that family.
func (s *scenario) fits(l *lab, family vip.Family) bool {
	separate := s.isolated || s.dual || family == vip.IPv6
	lacks := slices.ContainsFunc(s.modules, func(m string) bool { return slices.Contains(l.lacks, m) })
	return !lacks && slices.Contains(l.families(), family) && (l.isolated || !s.isolated && !s.dual) && (separate || !l.onlyIsolated)
}

// runTable runs those scenarios that fit the lab.
func runTable(t *testing.T, l *lab, all []scenario) {
	for _, s := range all {
		families := s.families
		if families == nil {
			families = []vip.Family{vip.IPv4}
		}
		for _, family := range families {
			if s.fits(l, family) {
				t.Run(strings.ReplaceAll(fmt.Sprintf("%s %s", s.name, family), " ", "_"), func(t *testing.T) { l.run(t, &s, family) })
			}
		}
	}
}

// run runs one scenario, in one family.
func (l *lab) run(t *testing.T, s *scenario, family vip.Family) {
	l.runs++
	r := &run{TB: t, lab: l, family: family, held: map[string]*netlab.Conn{}, marks: map[string]place{}, answered: map[string]map[place]place{}, probed: map[place]*checkServer{}}
	for _, f := range s.shows {
		why := must.Get(l.dataplane.refuses(f))(t)
		if why != "" {
			r.unsupported = why
		}
	}
	if r.unsupported == "" {
		for _, m := range s.modules {
			need.Module(t, m)
		}
	}
	inside := s.pods
	if inside == nil {
		inside = []place{pod}
	}
	pool := []netip.Prefix{l.pool(l.runs, family)}
	if s.dual {
		pool = []netip.Prefix{l.pool(l.runs, vip.IPv4), l.pool(l.runs, vip.IPv6)}
	}
	for _, family := range l.families() {
		for _, p := range inside {
			r.pods = append(r.pods, l.subnet(p, family))
		}
	}
	r.hub = newHub(pool, r.pods)
	var err error
	r.nodePorts = l.nodePorts
	if s.nodePorts != "" {
		r.nodePorts = []netip.Prefix{netip.MustParsePrefix(r.text(s.nodePorts))}
	}
	if r.host, err = l.startDirector(t, r.hub, r.pods, r.nodePorts); err != nil {
		t.Fatal(err)
	}
	<-r.host.Loop.Synced()
	err = r.steps(s)
	r.host.stop(t)
	for _, m := range r.servers {
		m.stop(t)
	}
	for _, c := range r.held {
		c.Close()
	}
	l.sweep(t, r.pods)
	switch {
	case errors.Is(err, errRefused):
		t.Logf("unsupported: %s", r.unsupported)
	case err != nil:
		t.Error(err)
	case r.unsupported != "":
		t.Errorf("%s says that it can't, and nothing was refused: %s", l.dataplane.name, r.unsupported)
	}
}

func (r *run) steps(s *scenario) error {
	for i, step := range s.steps {
		if err := step(r); errors.Is(err, errRefused) {
			return err
		} else if err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// marker is an environment variable of the processes that inNamespace starts and of their children.
const marker = "IRONVIP_SCENARIO_LAB"

// inNamespace runs a test in a process with its own network namespace, and checks that no processes
// and no namespaces remain.
func inNamespace(t *testing.T, test func(*testing.T)) {
	need.Root(t)
	if os.Getenv(marker) != "" {
		before, current := namespaces(t), goleak.IgnoreCurrent()
		t.Run("table", test)
		after := namespaces(t)
		expect.AtMost(t, after, before, "%d namespaces are open, %d were before", after, before)
		goleak.VerifyNone(t, current)
		return
	}
	self := must.Get(os.Executable())(t)
	mark := fmt.Sprintf("%s=%s-%d", marker, t.Name(), os.Getpid())
	args := []string{"-test.run", "^" + t.Name() + "$", "-test.timeout", "20m"}
	for _, a := range os.Args[1:] {
		if strings.HasPrefix(a, "-test.v") || strings.HasPrefix(a, "-test.failfast") {
			args = append(args, a)
		}
		if run, is := strings.CutPrefix(a, "-test.run="); is { // keeps its selection of scenarios
			if _, scenarios, found := strings.Cut(run, "/"); found {
				args[1] = "^" + t.Name() + "$/" + scenarios
			}
		}
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), mark)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the end of the thread would count as the parent's death
	defer runtime.UnlockOSThread()
	expect.Succeed(t, cmd.Run(), "the table")
	for _, p := range processesWith(t, mark) {
		t.Errorf("process %s outlived its test", p)
	}
}

// namespaces counts the network namespaces that this process holds open.
func namespaces(t *testing.T) (n int) {
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	for _, e := range entries {
		if target, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(target, "net:[") {
			n++
		}
	}
	return n
}

// processesWith returns the processes with a variable in their environment.
func processesWith(t *testing.T, variable string) (found []string) {
	environs := must.Get(filepath.Glob("/proc/[0-9]*/environ"))(t)
	for _, file := range environs {
		env, err := os.ReadFile(file)
		if err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return string(v) == variable }) {
			cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
			found = append(found, fmt.Sprintf("%s %q", filepath.Dir(file), cmdline))
		}
	}
	return found
}

// TestNFTInNamespaces runs the table on the host kernel's nftables, without SCTP, which few kernels
// of virtual machines have.
// Slow: it waits for what the kernel does by itself, such as the end of an affinity, in a hundred scenarios.
func TestNFTInNamespaces(t *testing.T) {
	t.Parallel() // beside the proxy's table: each has its own process and namespaces
	inNamespace(t, func(t *testing.T) {
		l := newNamespaces(t, nftables)
		l.lacks = []string{"sctp"}
		runTable(t, l, every())
	})
}

// TestConnectInNamespaces runs the table with programs of the director balanced at connect().
// Slow: as TestNFTInNamespaces.
func TestConnectInNamespaces(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(t *testing.T) {
		l := newNamespaces(t, nftables)
		l.cgroup = netlab.Cgroup(t)
		l.lacks = []string{"sctp"}
		runTable(t, l, every())
	})
}

// TestProxyOnLoopback needs no privileges. Each frontend has a listener.
// Slow: each scenario starts an agent, and those of health checks wait for several probes.
func TestProxyOnLoopback(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("table", func(t *testing.T) { runTable(t, newLoopback(t, userspace), every()) })
}

// TestProxyInNamespaces runs the table between separate hosts. Clients arrive by sk_lookup.
// Slow: as TestProxyOnLoopback, with twice as many scenarios.
func TestProxyInNamespaces(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(t *testing.T) {
		l := newNamespaces(t, userspace)
		l.skLookup = true
		runTable(t, l, every())
	})
}

// TestListenersInNamespaces runs what TestProxyOnLoopback can't.
// Slow: as TestProxyOnLoopback.
func TestListenersInNamespaces(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(t *testing.T) {
		l := newNamespaces(t, userspace)
		l.onlyIsolated = true
		runTable(t, l, every())
	})
}
