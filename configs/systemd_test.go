package configs

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/test/need"
)

// units are the files of both processes.
var units = []string{"ironvip.service", "ironvip-announcer.service"}

// installedUnit writes a copy of a unit with the path of an existing program.
func installedUnit(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("systemd/" + name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "ironvip")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(dir, name)
	write(t, unit, strings.NewReplacer("/usr/local/bin/ironvip", program, "/usr/local/libexec/ironvip/ironvip-announcer", program).Replace(string(text)))
	return unit
}

func TestUnitIsValid(t *testing.T) {
	analyze := need.Program(t, "systemd-analyze")
	for _, unit := range units {
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", installedUnit(t, unit)).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify %s: %v\n%s", unit, err, out)
		}
	}
}

func TestUnitIsHardened(t *testing.T) {
	analyze := need.Program(t, "systemd-analyze")
	for _, unit := range units {
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=22", installedUnit(t, unit)).CombinedOutput()
		if err != nil {
			t.Errorf("systemd-analyze security %s: %v\n%s", unit, err, out)
		}
	}
}

// settings reads a unit's lines. A key may occur more than once.
func settings(t *testing.T, unit string) map[string][]string {
	t.Helper()
	f, err := os.Open("systemd/" + unit)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), "="); ok && !strings.HasPrefix(key, "#") {
			out[key] = append(out[key], value)
		}
	}
	return out
}

func TestUnitFitsTheAgent(t *testing.T) {
	unit := settings(t, "ironvip.service")
	capabilities := "CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE CAP_BPF"
	for key, want := range map[string]string{
		"Type": "notify", "Restart": "on-failure", "User": "ironvip", "StateDirectory": "ironvip", "RuntimeDirectory": "ironvip",
		"AmbientCapabilities": capabilities, "CapabilityBoundingSet": capabilities, "ProtectKernelTunables": "no", "FileDescriptorStoreMax": "512", "LimitMEMLOCK": "infinity",
	} {
		if got := unit[key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if got := unit["SystemCallFilter"]; len(got) == 0 || got[len(got)-1] != "bpf" { // @privileged, which is excluded, has it
		t.Errorf("SystemCallFilter is %q", got)
	}
	// Stopping must not remove what the kernel forwards.
	for _, key := range []string{"ExecStop", "ExecStopPost"} {
		if got := unit[key]; got != nil {
			t.Errorf("%s is %q", key, got)
		}
	}
	if DefaultStateDir != "/var/lib/"+unit["StateDirectory"][0] || filepath.Dir(DefaultSocket) != "/run/"+unit["RuntimeDirectory"][0] {
		t.Errorf("the unit's directories aren't those of the defaults: %s, %s", DefaultStateDir, DefaultSocket)
	}
	sysusers, err := os.ReadFile("systemd/sysusers.d/ironvip.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^u ` + unit["User"][0] + ` `).Match(sysusers) {
		t.Errorf("no user %s in\n%s", unit["User"][0], sysusers)
	}
}

func TestUnitFitsTheAnnouncer(t *testing.T) {
	unit, agent := settings(t, "ironvip-announcer.service"), settings(t, "ironvip.service")
	capabilities := "CAP_NET_ADMIN CAP_NET_RAW"
	for key, want := range map[string]string{
		"Type": "notify", "Restart": "on-failure", "User": agent["User"][0], "RuntimeDirectory": "ironvip-announcer", "RuntimeDirectoryPreserve": "yes",
		"AmbientCapabilities": capabilities, "CapabilityBoundingSet": capabilities, "ProtectKernelTunables": "yes",
	} {
		if got := unit[key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	// A restart or upgrade of the agent must not restart the announcer.
	for _, key := range []string{"PartOf", "BindsTo", "Requires", "Requisite"} {
		if got := unit[key]; got != nil {
			t.Errorf("%s is %q", key, got)
		}
	}
	if dir := "/run/" + unit["RuntimeDirectory"][0]; filepath.Dir(newAnnounce().Socket) != dir {
		t.Errorf("the socket is at %s, not in %s", newAnnounce().Socket, dir)
	} else if got := agent["ReadWritePaths"]; !slices.Contains(got, "-"+dir) {
		t.Errorf("the agent can't write to %s: %q", dir, got)
	}
}

// systemd's own parsers read these files. They skip a line with a warning if it is neither a
// comment nor in the expected form.
func TestKernelFiles(t *testing.T) {
	for file, test := range map[string]struct {
		form string
		has  []string
	}{
		"systemd/sysctl.d/60-ironvip.conf":    {`^-?net\.[a-z0-9_.]+ = \d$`, []string{"net.ipv4.ip_forward = 1", "-net.ipv4.vs.conntrack = 1"}},
		"systemd/modules-load.d/ironvip.conf": {`^[a-z0-9_]+$`, []string{"ip_vs", "ip_vs_mh", "nf_conntrack", "nf_tables", "dummy"}},
		"systemd/sysusers.d/ironvip.conf":     {`^u `, nil},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		form := regexp.MustCompile(test.form)
		for i, line := range lines {
			if line != "" && !strings.HasPrefix(line, "#") && !form.MatchString(line) {
				t.Errorf("%s:%d: %s", file, i+1, line)
			}
		}
		for _, want := range test.has {
			if !slices.Contains(lines, want) {
				t.Errorf("%s lacks %s", file, want)
			}
		}
	}
}

// The rule names the user of the unit and the actions that systemd-resolved has.
func TestPolkitRule(t *testing.T) {
	rule, err := os.ReadFile("polkit/50-ironvip.rules")
	if err != nil {
		t.Fatal(err)
	}
	if want := `subject.user == "` + settings(t, "ironvip.service")["User"][0] + `"`; !strings.Contains(string(rule), want) {
		t.Errorf("the rule lacks %s", want)
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), "configs/polkit/50-ironvip.rules $(DESTDIR)"+resolved.RuleFile+"\n") {
		t.Errorf("make install doesn't install the rule at %s", resolved.RuleFile)
	}
}
