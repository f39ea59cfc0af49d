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
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/test/need"
)

// units are the files of all processes.
var units = []string{"ironvip.service", "ironvip-proxy.socket", "ironvip-proxy.service", "ironvip-announcer.service"}

// installedUnits writes copies of the units with the path of an existing program, and returns their folder.
func installedUnits(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range units {
		text, err := os.ReadFile("systemd/" + name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), regexp.MustCompile(`/usr/local/\S+`).ReplaceAllString(string(text), program))
	}
	return dir
}

func TestUnitIsValid(t *testing.T) {
	analyze, dir := need.Program(t, "systemd-analyze"), installedUnits(t)
	for _, unit := range units {
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", filepath.Join(dir, unit)).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify %s: %v\n%s", unit, err, out)
		}
	}
}

func TestUnitIsHardened(t *testing.T) {
	analyze, dir := need.Program(t, "systemd-analyze"), installedUnits(t)
	for _, unit := range units {
		if filepath.Ext(unit) != ".service" {
			continue
		}
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=22", filepath.Join(dir, unit)).CombinedOutput()
		if err != nil {
			t.Errorf("systemd-analyze security %s: %v\n%s", unit, err, out)
		}
	}
}

// unit is a unit's lines. A key may occur more than once.
type unit struct {
	name string
	all  map[string][]string
}

func settings(t *testing.T, name string) unit {
	t.Helper()
	f, err := os.Open("systemd/" + name)
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
	return unit{name, out}
}

// one returns the value of a key: more than one with semicolons, and "" for none.
func (u unit) one(key string) string { return strings.Join(u.all[key], "; ") }

// has compares settings that a unit has once. An empty value means that the unit hasn't got the key.
func (u unit) has(t *testing.T, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got := u.one(key); got != value {
			t.Errorf("%s of %s is %q, want %q", key, u.name, got, value)
		}
	}
}

// allowsBPF reports whether the unit allows the system call of that name, which the group @privileged, that no unit has,
// contains.
func (u unit) allowsBPF() bool {
	filter := u.all["SystemCallFilter"]
	return len(filter) > 0 && filter[len(filter)-1] == "bpf"
}

func TestUnitFitsTheAgent(t *testing.T) {
	agent := settings(t, "ironvip.service")
	capabilities := "CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE"
	agent.has(t, map[string]string{
		"Type": "notify", "Restart": "on-failure", "User": "ironvip", "StateDirectory": "ironvip", "RuntimeDirectory": "ironvip",
		"AmbientCapabilities": capabilities, "CapabilityBoundingSet": capabilities, "ProtectKernelTunables": "no", "FileDescriptorStoreMax": "64", "LimitMEMLOCK": "",
		"MemoryHigh": "50%", "MemoryMax": "70%", "Environment": "", // GOMEMLIMIT would take the place of these limits
		"ExecStop": "", "ExecStopPost": "", // stopping must not remove what the kernel forwards
	})
	if agent.allowsBPF() {
		t.Error("the agent may use BPF, which only the proxy needs")
	}
	if DefaultStateDir != "/var/lib/"+agent.one("StateDirectory") || filepath.Dir(DefaultSocket) != "/run/"+agent.one("RuntimeDirectory") {
		t.Errorf("the unit's directories aren't those of the defaults: %s, %s", DefaultStateDir, DefaultSocket)
	}
	sysusers, err := os.ReadFile("systemd/sysusers.d/ironvip.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^u ` + agent.one("User") + ` `).Match(sysusers) {
		t.Errorf("no user %s in\n%s", agent.one("User"), sysusers)
	}
}

// fitsSatellite checks the unit of a process that the agent steers: it runs as the agent's user with these capabilities, in a
// system that it can't change, and a restart or upgrade of the agent does not restart it.
func fitsSatellite(t *testing.T, name, capabilities string) unit {
	t.Helper()
	u := settings(t, name)
	u.has(t, map[string]string{
		"Type": "notify", "NotifyAccess": "main", "Restart": "on-failure", "StartLimitIntervalSec": "0", "User": settings(t, "ironvip.service").one("User"),
		"AmbientCapabilities": capabilities, "CapabilityBoundingSet": capabilities, "ProtectKernelTunables": "yes", "ProtectSystem": "strict", "StateDirectory": "",
	})
	for _, key := range []string{"PartOf", "BindsTo", "Requires", "Requisite"} {
		if got := u.all[key]; slices.Contains(got, "ironvip.service") {
			t.Errorf("%s of %s is %q", key, name, got)
		}
	}
	return u
}

func TestUnitFitsTheAnnouncer(t *testing.T) {
	announcer := fitsSatellite(t, "ironvip-announcer.service", "CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE")
	announcer.has(t, map[string]string{"RuntimeDirectory": "ironvip-announcer", "RuntimeDirectoryPreserve": "yes", "FileDescriptorStoreMax": "1024"})
	if dir := "/run/" + announcer.one("RuntimeDirectory"); filepath.Dir(newAnnounce().Socket) != dir {
		t.Errorf("the socket is at %s, not in %s", newAnnounce().Socket, dir)
	} else if got := settings(t, "ironvip.service").all["ReadWritePaths"]; !slices.Contains(got, "-"+dir) {
		t.Errorf("the agent can't write to %s: %q", dir, got)
	}
}

func TestUnitFitsTheProxy(t *testing.T) {
	proxy := fitsSatellite(t, "ironvip-proxy.service", "CAP_NET_BIND_SERVICE CAP_BPF CAP_NET_ADMIN")
	proxy.has(t, map[string]string{
		"KillMode": "mixed", "ExecReload": "/bin/sh -c 'kill -HUP $MAINPID'", "Requires": "ironvip-proxy.socket", "After": "ironvip-proxy.socket",
		"LimitNOFILE": "1048576", "LimitMEMLOCK": "infinity", "MemoryHigh": "50%", "MemoryMax": "70%", "WantedBy": "", // the socket starts it
	})
	if !proxy.allowsBPF() {
		t.Error("the proxy may not use BPF")
	}
	agent, socket := settings(t, "ironvip.service"), settings(t, "ironvip-proxy.socket")
	user := agent.one("User")
	socket.has(t, map[string]string{"ListenStream": process.DefaultSocket, "SocketUser": user, "SocketGroup": user, "SocketMode": "0600", "TriggerLimitIntervalSec": "0", "WantedBy": "sockets.target"})
	proxy.has(t, map[string]string{"ReadWritePaths": filepath.Dir(process.DefaultSocket)})
	if command := agent.one("ExecStart"); !strings.HasSuffix(command, " --proxy-socket "+process.DefaultSocket) {
		t.Errorf("the agent doesn't use the socket: %s", command)
	}
	for _, key := range []string{"Wants", "After"} {
		if !strings.Contains(agent.one(key), "ironvip-proxy.socket") {
			t.Errorf("%s of the agent lacks the socket", key)
		}
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
	if want := `subject.user == "` + settings(t, "ironvip.service").one("User") + `"`; !strings.Contains(string(rule), want) {
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
