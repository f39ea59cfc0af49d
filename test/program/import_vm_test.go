//go:build vm

package program

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// noProtocol is the only note: about the server without a protocol, which is UDP in keepalived.
const noProtocol = "has no protocol"

// keepalivedServices is a configuration with what keepalived programs into IPVS: schedulers, flags,
// methods, weights, persistence, both families and protocols. Its servers have no checks, so that all
// of them are there at once.
const keepalivedServices = `
virtual_server_group mail {
  POOL.20-21 25
}
virtual_server POOL.1 80{# braces and comments touch words
  protocol TCP#all
  lb_algo wrr!x
  lb_kind NAT
  persistence_timeout 300
  real_server 10.1.0.11 8080{
    weight 3}
  real_server 10.1.0.12 8080 { weight 1
  }#end
}
virtual_server POOL.1 443 {
  protocol TCP
  lb_algo mh
  mh-fallback
  mh-port
  lb_kind DR
  real_server 10.1.0.11 443 { weight 2 }
  real_server 10.1.0.12 443 { weight 2 }
}
virtual_server group mail {
  protocol TCP
  lb_algo lc
  lb_kind NAT
  real_server 10.1.0.21 2525 { }
}
virtual_server POOL.3 53 {
  protocol UDP
  lb_algo sed
  lb_kind TUN
  real_server 10.1.0.31 53 { weight 5 }
}
virtual_server POOL.4 514 {
  lb_algo rr
  lb_kind NAT
  real_server 10.1.0.41 514 { weight 1 }
}
virtual_server 2001:db8:77::1 80 {
  protocol TCP
  lb_algo rr
  lb_kind NAT
  real_server 2001:db8:1::11 8080 { }
}
`

// The configuration of keepalived, and what it made of the kernel, also read from the kernel itself, become services that program the
// same into the kernel.
//
// Slow: keepalived and two agents start in the emulated machine.
func TestImportedServicesProgramTheSame(t *testing.T) {
	h, lab := newLab(t)
	services := strings.ReplaceAll(keepalivedServices, "POOL", h.pool)
	dir := t.TempDir()
	conf, rules := filepath.Join(dir, "keepalived.conf"), filepath.Join(dir, "rules")
	must.Succeed(t, os.WriteFile(conf, []byte(services), 0o644))
	want := keepalivedState(t, lab.Director, conf, dir)
	must.Succeed(t, os.WriteFile(rules, []byte(strings.Join(want, "\n")+"\n"), 0o644))

	out := must.Get(lab.Director.Feed(strings.Join(want, "\n"), "ipvsadm", "-R"))(t)
	must.Equal(t, string(out), "")

	for _, c := range []struct{ program, file string }{{"keepalived", conf}, {"ipvsadm", rules}, {"ipvs", ""}} {
		t.Run(c.program, func(t *testing.T) {
			out := t.TempDir()
			var r result
			lab.Director.Do(func() {
				r = command(t, slices.DeleteFunc([]string{"import", c.program, c.file, "--dir", out}, func(arg string) bool { return arg == "" })...)
			})
			if notes := strings.Count(r.stderr, noProtocol); r.code != 0 || !strings.HasSuffix(r.stderr, fmt.Sprintf(" services, %s\n", text.Plural(notes, "note"))) {
				t.Fatal(r)
			}
			services := must.Get(os.ReadFile(filepath.Join(out, "services.d", c.program+".toml")))(t)
			pool := must.Get(os.ReadFile(filepath.Join(out, "ironvip.toml")))(t)
			h, lab := newLab(t)
			h.edit("ironvip.toml", fmt.Sprintf("[[pool]]\nname = \"main\"\ncidrs = [%q]\n", h.pool+".0/24"), string(pool)+"[health]\ndefault = \"none\"\n")
			h.write("services.d/imported.toml", string(services))
			h.start()
			h.eventually("the kernel has the same services", func() error {
				if got := kernelState(t, lab.Director); !slices.Equal(got, want) {
					return fmt.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				return nil
			})
		})
	}
}

// keepalivedState returns what keepalived programs. It ends keepalived and leaves no service.
func keepalivedState(t *testing.T, n *netlab.Node, conf, dir string) (state []string) {
	t.Helper()
	cmd := exec.Command("keepalived", "--dont-fork", "--check", "--log-console", "--use-file", conf,
		"--pid", filepath.Join(dir, "main.pid"), "--checkers_pid", filepath.Join(dir, "checkers.pid"))
	n.Do(func() {
		must.Succeed(t, cmd.Start())
	})
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-done:
		case <-time.After(wait.Timeout):
			_ = cmd.Process.Kill()
			t.Error("keepalived does not end")
		}
		expect.Empty(t, kernelState(t, n), "keepalived left")
	}()
	servers := strings.Count(keepalivedServices, "real_server") + 1 // the group has two addresses
	(&host{t: t}).eventually("keepalived has programmed its services", func() error {
		select {
		case err := <-done:
			done <- err
			return errors.New("keepalived has ended")
		default:
		}
		state = kernelState(t, n)
		if got := len(slices.DeleteFunc(slices.Clone(state), func(l string) bool { return !strings.HasPrefix(l, "-a") })); got != servers {
			return fmt.Errorf("%d of %d servers", got, servers)
		}
		return nil
	})
	return state
}

// kernelState returns the sorted lines of "ipvsadm -Sn" in a namespace.
func kernelState(t *testing.T, n *netlab.Node) []string {
	t.Helper()
	var out []byte
	var err error
	n.Do(func() { out, err = exec.Command("ipvsadm", "-Sn").CombinedOutput() })
	must.Succeed(t, err, "ipvsadm -Sn: %s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	return slices.DeleteFunc(lines, func(l string) bool { return l == "" })
}
