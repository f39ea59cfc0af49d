package ipvs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]version{
		"6.1.0-56-cloud-amd64": {6, 1}, "5.10.0": {5, 10}, "4.19": {4, 19}, "6.18.44-fc": {6, 18}, "": {}, "x.y": {}, "7": {7, 0}, "5.4-rc1": {5, 4},
	} {
		if got := parseVersion(in); got != want {
			t.Errorf("%q is %v, want %v", in, got, want)
		}
	}
}

func TestConnReuseModeByKernel(t *testing.T) {
	for v, want := range map[version]bool{{4, 0}: false, {4, 1}: true, {4, 19}: true, {5, 8}: true, {5, 9}: false, {6, 1}: false} {
		got := false
		for _, s := range settings(v) {
			got = got || s.key == "ipv4/vs/conn_reuse_mode"
		}
		if got != want {
			t.Errorf("kernel %v: conn_reuse_mode set is %v, want %v", v, got, want)
		}
	}
}

func TestSysctls(t *testing.T) {
	root := t.TempDir()
	write := func(name, value string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(value), mode); err != nil {
			t.Fatal(err)
		}
	}
	s := sysctls{root}
	set := setting{key: "ipv4/vs/conntrack", value: "1", why: "a reason"}
	write(set.key, "0\n", 0o644)
	if f := s.check(set); f.OK || f.Remedy != "sysctl -w net.ipv4.vs.conntrack=1" || !strings.Contains(f.Detail, "is 0, needs 1: a reason") {
		t.Errorf("a wrong one: %+v", f)
	}
	if f := s.set(set); !f.OK {
		t.Errorf("set: %+v", f)
	}
	if b, _ := os.ReadFile(filepath.Join(root, set.key)); strings.TrimSpace(string(b)) != "1" {
		t.Errorf("the file has %q", b)
	}
	missing := setting{key: "ipv4/vs/expire_nodest_conn", value: "1", why: "a reason"}
	if f := s.set(missing); f.OK || f.Remedy == "" {
		t.Errorf("a missing one: %+v", f)
	}
	missing.optional = true
	if f := s.set(missing); !f.OK {
		t.Errorf("a missing one that kernels may lack: %+v", f)
	}
	// What stands in the way of writing is part of the message.
	if err := os.MkdirAll(filepath.Join(root, "ipv4/ip_forward"), 0o755); err != nil {
		t.Fatal(err)
	}
	if f := s.set(setting{key: "ipv4/ip_forward", value: "1"}); f.OK || !strings.Contains(f.Detail, "can't be set") {
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
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := moduleIndex(root, "6.1.0")
	for name, want := range map[string]string{
		"ip_vs_rr": "loaded", "ip_vs_wrr": "loaded when needed", "dummy_x": "loaded when needed", "ip_vs_mh": "kernel 6.1.0 has no such module",
	} {
		if f := m.check(name); f.Detail != want || f.OK != !strings.Contains(want, "no such") || f.OK != (f.Remedy == "") {
			t.Errorf("%s: %+v, want %q", name, f, want)
		}
	}
	if f := moduleIndex(root, "5.0").check("ip_vs_mh"); !f.OK {
		t.Errorf("where nothing is known: %+v", f)
	}
}

// Check changes nothing, so it may run on any machine; what it finds wrong has
// a remedy.
func TestCheckAnywhere(t *testing.T) {
	findings := Check(false)
	if len(findings) < 5 {
		t.Fatalf("only %d findings", len(findings))
	}
	for _, f := range findings {
		if f.Name == "" || f.Detail == "" || f.OK != (f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
	err := Err(findings)
	if Usable(findings) != (err == nil) {
		t.Errorf("usable %v, but %v", Usable(findings), err)
	}
	bad := []Finding{{Name: "a", OK: true, Required: true}, {Name: "b", Detail: "x"}, {Name: "c", Required: true, Detail: "is not", Remedy: "do"}}
	if err := Err(bad); err == nil || err.Error() != "ipvs needs c: is not" {
		t.Errorf("%v", err)
	}
}

// Inactive connections count while packets come, and 5 s longer.
func TestIdleWatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := &idleWatch{now: time.Now, seen: map[flow]sample{}}
		k := flow{vip.FrontendKey{Port: 80}, addrPort("10.1.0.1:80")}
		steps := []struct {
			packets uint64
			wait    time.Duration
			want    bool
		}{
			{10, 0, true}, // who knows
			{10, 4 * time.Second, true},
			{11, 0, true},
			{11, 4 * time.Second, true},
			{11, 2 * time.Second, false},
			{12, time.Hour, true},
		}
		for i, s := range steps {
			time.Sleep(s.wait)
			if got := w.busy(k, s.packets, w.now()); got != s.want {
				t.Errorf("step %d: busy is %v", i, got)
			}
		}
		for i := range uint16(2000) {
			w.busy(flow{vip.FrontendKey{Port: i}, k.backend}, 1, w.now())
		}
		time.Sleep(2 * time.Minute)
		w.busy(k, 13, w.now())
		w.forget(w.now())
		if len(w.seen) != 1 {
			t.Errorf("%d endpoints are remembered, want the one just asked about", len(w.seen))
		}
	})
}
