package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func TestSysctls(t *testing.T) {
	root := t.TempDir()
	write := func(name, value string, mode os.FileMode) {
		t.Helper()
		must.Succeed(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		must.Succeed(t, os.WriteFile(filepath.Join(root, name), []byte(value), mode))
	}
	s := Sysctls{root}
	set := Setting{Key: "ipv4/vs/conntrack", Value: "1", Why: "a reason"}
	write(set.Key, "0\n", 0o644)
	if f := s.Check(set); f.OK || f.Remedy != "sysctl -w net.ipv4.vs.conntrack=1" || !strings.Contains(f.Detail, "is 0, needs 1: a reason") {
		t.Errorf("a wrong one: %+v", f)
	}
	if f := s.Set(set); !f.OK {
		t.Errorf("set: %+v", f)
	}
	b, _ := os.ReadFile(filepath.Join(root, set.Key))
	expect.Equal(t, strings.TrimSpace(string(b)), "1", "the file has %q", b)
	missing := Setting{Key: "ipv4/vs/expire_nodest_conn", Value: "1", Why: "a reason"}
	if f := s.Set(missing); f.OK || f.Remedy == "" {
		t.Errorf("a missing one: %+v", f)
	}
	missing.Optional = true
	if f := s.Set(missing); !f.OK {
		t.Errorf("a missing one that kernels may lack: %+v", f)
	}
	// The message contains the reason of a failed write.
	must.Succeed(t, os.MkdirAll(filepath.Join(root, "ipv4/ip_forward"), 0o755))
	if f := s.Set(Setting{Key: "ipv4/ip_forward", Value: "1"}); f.OK || !strings.Contains(f.Detail, "can't be set") {
		t.Errorf("one that can't be written: %+v", f)
	}
}

func TestModulesCheck(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"lib/modules/6.1.0/modules.dep":     "kernel/net/netfilter/ipvs/ip_vs_wrr.ko.xz: kernel/net/netfilter/ipvs/ip_vs.ko.xz\n",
		"lib/modules/6.1.0/modules.builtin": "kernel/net/dummy-x.ko\n",
		"sys/module/ip_vs_rr/refcnt":        "0",
	} {
		must.Succeed(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		must.Succeed(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o644))
	}
	m := ModuleIndex(root, "6.1.0")
	for name, want := range map[string]string{
		"ip_vs_rr": "loaded", "ip_vs_wrr": "loaded when needed", "dummy_x": "loaded when needed", "ip_vs_mh": "kernel 6.1.0 has no such module",
	} {
		if f := m.Check(name); f.Detail != want || f.OK != !strings.Contains(want, "no such") || f.OK != (f.Remedy == "") ||
			strings.Contains(f.Remedy, "modprobe") { // it can't load what isn't there
			t.Errorf("%s: %+v, want %q", name, f, want)
		}
	}
	if f := ModuleIndex(root, "5.0").Check("ip_vs_mh"); !f.OK {
		t.Errorf("where nothing is known: %+v", f)
	}
}
