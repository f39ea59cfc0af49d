//go:build system

package program

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// Without privileges nothing is removed, and the exit code reports that.
func TestCleanWithoutRights(t *testing.T) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	h.start()
	h.vip("web")
	h.stop()
	clean := func() result { return h.as(nobody, nil, "dataplane", "clean", "--config", h.dir) }
	h.belongsTo(nobody)
	r := clean()
	if r.code != 7 || !strings.Contains(r.stderr, "look for what was left") || !strings.Contains(r.stderr, "CAP_NET_ADMIN") || r.stdout != "" {
		t.Errorf("without rights: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	must.Succeed(t, os.Chown(filepath.Join(h.dir, "state", "ironvip.db"), 0, 0))
	if r := clean(); r.code != 7 || !strings.Contains(r.stderr, "ironvip.db") || !strings.Contains(r.stderr, "as root") {
		t.Errorf("with a state file of root's: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// On a kernel without IPVS, clean reports that, and removes what can exist there, for example a
// table from a time with another kernel.
func TestCleanWithoutIPVS(t *testing.T) {
	parallel(t)
	need.Root(t)
	need.Program(t, "nft")
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		t.Log("this kernel has IPVS: the VM's tests have the rest")
		return
	}
	l, h := netlab.New(t), newHost(t)
	inside := func(want int, args ...string) string {
		t.Helper()
		var out []byte
		var err error
		l.Director.Do(func() { out, err = exec.Command(args[0], args[1:]...).CombinedOutput() })
		code := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code, err = exit.ExitCode(), nil
		}
		if err != nil || code != want {
			t.Errorf("%s: exit code %d, want %d: %v\n%s", args, code, want, err, out)
		}
		return string(out)
	}
	clean := []string{bin(t), "dataplane", "clean", "--config", h.dir}
	inside(0, "nft", "add", "table", "inet", "neighbour")
	before := inside(0, "nft", "list", "ruleset")
	mentions(t, "nothing there", inside(0, clean...), "no IPVS", "nothing of the ipvs dataplane can be there", "nothing to remove")
	inside(0, "nft", "add", "table", "inet", "ironvip")
	mentions(t, "dry run", inside(10, append(clean, "--dry-run")...), "inet ironvip")
	mentions(t, "clean", inside(0, clean...), "inet ironvip", "removed 1 object")
	leave := func() {
		t.Helper()
		l.Director.Do(func() {
			target := must.Get(nft.New(nft.Options{Owns: func(netip.Addr) bool { return true }}))(t)
			defer target.Close()
			p := must.Get(vips.New(vips.Options{Plane: target}))(t)
			defer p.Close()
			f := vip.Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP}, Scheduler: vip.RoundRobin}
			batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: f.Key, New: &f}}
			must.Succeed(t, errors.Join(p.Apply(t.Context(), batch), batch[0].Err))
		})
	}
	leave()
	mentions(t, "dry run after nft", inside(10, append(clean, "--dry-run")...), "10.96.0.1", "on ironvip0", "10.96.0.1:80/tcp", "rr, 0 backends", "inet ironvip_nft")
	mentions(t, "clean after nft", inside(0, clean...), "removed 4 objects")
	mentions(t, "clean again", inside(0, clean...), "nothing to remove")
	links := inside(0, "ip", "-o", "link")
	expect.False(t, strings.Contains(links, "ironvip0"), "the bridge is left: %s", links)
	if now := inside(0, "nft", "list", "ruleset"); now != before || !strings.Contains(now, "neighbour") {
		t.Errorf("after clean there is %q, before there was %q", now, before)
	}
}
