package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ironvip/ironvip/agent/offline"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/node"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestDoctor(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/status", 200, healthyStatus())
	dir := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "ironvip.toml"), []byte("[[pool]]\nname = \"public-v4\"\ncidrs = [\"192.0.2.0/24\"]\n"), 0o644))
	broken := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(broken, "ironvip.toml"), []byte("[[pol]]\n"), 0o644))
	insist := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(insist, "ironvip.toml"), []byte("[dataplane]\nmode = \"ipvs\"\n"), 0o644))
	realServer := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(realServer, "ironvip.toml"), []byte("[dataplane]\nrole = \"real-server\"\n"), 0o644))
	unread := t.TempDir()
	for file, text := range map[string]string{"ironvip.toml": "[[source]]\ntype = \"consul\"\n", "services.d/web.toml": ""} {
		must.Succeed(t, errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(unread, file)), 0o755), os.WriteFile(filepath.Join(unread, file), []byte(text), 0o644)))
	}
	noIPVS := func(h *doctor.Host) {
		h.Needs = func(k *plane.Kind) []ipvs.Finding {
			if k.Mode != configs.ModeIPVS {
				return nil
			}
			return []ipvs.Finding{{Name: "capability CAP_NET_ADMIN", OK: true, Required: true},
				{Name: "kernel module ip_vs", Required: true, Detail: "the kernel has no IPVS, or it isn't loaded", Remedy: "modprobe ip_vs"}}
		}
	}
	oneSetting := func(h *doctor.Host) {
		h.Needs = func(*plane.Kind) []ipvs.Finding {
			return []ipvs.Finding{{Name: "kernel module ip_vs", OK: true, Required: true},
				{Name: "sysctl net.ipv4.vs.conntrack", Detail: "is 0, needs 1: masquerading needs it; the agent sets it when it may",
					Remedy: "sysctl -w net.ipv4.vs.conntrack=1"}}
		}
	}
	var all strings.Builder
	for _, c := range []struct {
		name   string
		config string
		change func(*doctor.Host)
		level  string // the agent's level; "": no agent
		code   int
	}{
		{"healthy", dir, func(*doctor.Host) {}, v1.LevelOK, command.ExitOK},
		{"kube-proxy", dir, func(h *doctor.Host) {
			h.Files.(fstest.MapFS)["proc/9/comm"] = &fstest.MapFile{Data: []byte("kube-proxy\n")}
			h.Files.(fstest.MapFS)["proc/9/cmdline"] = &fstest.MapFile{Data: []byte("kube-proxy\x00--proxy-mode=ipvs\x00")}
		}, v1.LevelOK, command.ExitDegraded},
		{"no ipvs, auto", dir, noIPVS, v1.LevelOK, command.ExitDegraded},
		{"no ipvs, configured", insist, noIPVS, v1.LevelOK, command.ExitError},
		{"no ipvs, a real server", realServer, noIPVS, v1.LevelOK, command.ExitError},
		{"a setting", insist, oneSetting, v1.LevelOK, command.ExitDegraded},
		{"mistake in the config", broken, func(*doctor.Host) {}, v1.LevelOK, command.ExitError},
		{"services that no source reads", unread, func(*doctor.Host) {}, v1.LevelOK, command.ExitDegraded},
		{"no config", filepath.Join(dir, "none"), func(*doctor.Host) {}, v1.LevelOK, command.ExitDegraded},
		{"no agent, no state directory", dir, func(h *doctor.Host) {
			h.Writable = func(path string) (bool, error) {
				return false, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
			}
		}, "", command.ExitDegraded},
		{"agent unhealthy", dir, func(*doctor.Host) {}, v1.LevelWarn, command.ExitDegraded},
	} {
		h := wellHost()
		c.change(h)
		line := "doctor --config " + c.config
		switch c.level {
		case "":
			line += " --addr unix:///run/none.sock"
		case v1.LevelWarn:
			a.on("GET /v1/status", 200, nodeStatus())
		}
		r := a.runWith(t, Options{Host: h}, line)
		expect.Equal(t, r.code, c.code, "%s: exit code\n%s", c.name, r)
		all.WriteString("# " + c.name + "\n" + r.String())
	}
	j := a.runWith(t, Options{Host: wellHost()}, "doctor -o json --config "+dir)
	all.WriteString("# json\n" + j.String())
	golden(t, "doctor.txt", strings.NewReplacer(dir, "CONFIG", broken, "BROKEN", insist, "INSIST", realServer, "REAL_SERVER", unread, "UNREAD").Replace(all.String()))
}

// With a configuration that can't be used, doctor checks what the last good one names, as the agent
// runs with it, and asks that agent.
func TestDoctorUsesTheLastGoodConfiguration(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/status", 200, healthyStatus())
	dir, state := t.TempDir(), t.TempDir()
	file, copyAt := filepath.Join(dir, "ironvip.toml"), filepath.Join(state, "ironvip.toml.last-good")
	write := func(file, text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o644))
	}
	ofState := fmt.Sprintf("[node]\nstate_dir = %q\n", state)
	good := ofState + fmt.Sprintf("[api]\nsocket = %q\n[dataplane]\nmode = \"nft\"\n", a.socket)
	const answers, noNFT = "agent on lb1 answers", "FAIL  nftables: the kernel has none"
	host := wellHost()
	host.Needs = func(*plane.Kind) []ipvs.Finding {
		return []ipvs.Finding{{Name: "nftables", Required: true, Detail: "the kernel has none", Remedy: "modprobe nf_tables"}}
	}
	lastGood := configs.LoadOrLastGood
	doctor := func(arguments string, says ...string) {
		t.Helper()
		r := run(t, Options{Host: host, LastGood: lastGood}, "doctor --config "+arguments)
		for _, s := range says {
			expect.Contains(t, r.stdout, s, "doctor does not say %q:\n%s", s, r)
		}
	}

	write(file, ofState+"device = 7\n")
	doctor(dir, "can't be used: the other lines are about the defaults", file+":3: node.device: ", "/run/ironvip/ironvip.sock: ")
	write(copyAt, "mode = 7\n")
	doctor(dir+" --addr unix://"+a.socket, answers, "about the defaults", "state directory /var/lib/ironvip")
	write(copyAt, good)
	doctor(dir, "can't be used: the other lines are about the last good one", answers, noNFT)
	lastGood = func(string, string) (*configs.Config, []vip.Problem) { return configs.LoadOrLastGood(dir, "") } // as if it were in the default state directory
	doctor(filepath.Join(dir, "none"), "not found: the other lines are about the last good one", answers, noNFT)
}

// Doctor works on any machine without a panic.
func TestDoctorOnThisHost(t *testing.T) {
	r := run(t, Options{}, "doctor --addr unix:///nonexistent.sock")
	if r.code != command.ExitError && r.code != command.ExitDegraded {
		t.Errorf("exit code %d without an agent, want %d or %d\n%s", r.code, command.ExitError, command.ExitDegraded, r)
	}
	if !strings.Contains(r.stdout, "kernel ") || !strings.Contains(r.stdout, "/nonexistent.sock") || r.stderr != "" {
		t.Errorf("%s", r)
	}
}

func TestVersion(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/status", 200, nodeStatus())
	r := a.run(t, "version")
	if want := regexp.MustCompile(`^ironvip 0\.1\.0 \(go1\S+, linux/\w+\)\nagent   0\.1\.0 on lb1\n$`); r.code != command.ExitOK || !want.MatchString(r.stdout) {
		t.Errorf("with an agent:\n%s", r)
	}
	r = run(t, Options{}, "version --addr unix:///nonexistent.sock")
	if want := regexp.MustCompile(`^ironvip 0\.1\.0 \(\S+ \S+\)\n$`); r.code != command.ExitOK || !want.MatchString(r.stdout) || r.stderr != "" {
		t.Errorf("without an agent:\n%s", r)
	}
	if r := run(t, Options{}, "--version"); r.stdout != "ironvip 0.1.0\n" {
		t.Errorf("--version:\n%s", r)
	}
	if r := run(t, Options{}, "version -o name --addr unix:///nonexistent.sock"); r.stdout != "0.1.0\n" {
		t.Errorf("-o name:\n%s", r)
	}
}

func TestCompletion(t *testing.T) {
	a := fullAgent(t)
	for line, want := range map[string]string{
		"service get ":                          "web\thealthy 192.0.2.10\nshop/db\tdegraded 192.0.2.11,2001:db8::11\nlate\tpending\n:4\n",
		"service get web ":                      "shop/db\tdegraded 192.0.2.11,2001:db8::11\nlate\tpending\n:4\n",
		"service explain web ":                  ":4\n",
		"backend drain shop/db ":                "10.1.0.21:5432\tready, unknown\n10.1.0.22:5432\tmaint, unhealthy\n:4\n",
		"source resync ":                        "rest\trest\nstatic\tstatic\n:4\n",
		"service list --source ":                "rest\trest\nstatic\tstatic\n:4\n",
		"top --limit ":                          ":4\n",
		"token create deploy --expires ":        ":4\n",
		"status --timeout ":                     ":4\n",
		"dataplane switch ":                     "ipvs\nnft\nproxy\noff\n:4\n",
		"config schema ":                        "config\nservices\nhook\n:4\n",
		"service list --state ":                 "healthy\nunchecked\nelsewhere\ndegraded\ndown\npending\nrefused\n:4\n",
		"service list -o ":                      "table\nwide\njson\nyaml\nname\n:4\n",
		"dataplane ":                            "clean\tremove everything that an agent left in the kernel; needs no agent\nconnections\tlist single connections through this host, as ipvsadm -Lnc does\ndiff\tcompare the dataplane with the desired state\nrepair\tcompare the dataplane with the desired state now, and repair the differences\nshow\tshow the dataplane and all desired frontends\nswitch\tmove this host to another dataplane\n:4\n",
		"dataplane connections --service shop/": "shop/db\tdegraded 192.0.2.11,2001:db8::11\n:4\n",
		"pool get ":                             "public-v4\t192.0.2.0/24\nv6\t2001:db8:1::/64\n:4\n",
		"service edit shop/":                    "shop/db\tdegraded 192.0.2.11,2001:db8::11\n:4\n",
		"service watch web shop/":               "shop/db\tdegraded 192.0.2.11,2001:db8::11\n:4\n",
		"config validate ":                      "toml\n:8\n",
		"service apply -f ":                     "toml\njson\nyaml\nyml\n:8\n",
		"events --service shop/":                "shop/db\tdegraded 192.0.2.11,2001:db8::11\n:4\n",
		"service get BAD":                       ":4\n",
		"backend drain NOT_A_NAME ":             ":4\n",
	} {
		words := append([]string{"__complete"}, strings.Split(line, " ")...)
		got := complete(t, a, words)
		expect.Equal(t, got, want, "%q:\n%s\nwant\n", line, got)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := run(t, Options{}, "completion "+shell); r.code != command.ExitOK || !strings.Contains(r.stdout, "__complete") {
			t.Errorf("completion %s: code %d, %d bytes", shell, r.code, len(r.stdout))
		}
	}
	for line, says := range map[string]string{"completion bashh": `did you mean "ironvip completion bash"?`, "completion": "command missing: use bash, fish"} {
		if r := run(t, Options{}, line); r.code != command.ExitUsage || r.stdout != "" || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: %s", line, r)
		}
	}
}

// A setting without effect is a warning: the service works, so the configuration is valid.
func TestValidateWarnsOfSettingsWithoutEffect(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{"ironvip.toml": "[[pool]]\nname = \"lan\"\ncidrs = [\"192.0.2.0/24\"]\n[[source]]\ntype = \"static\"\npath = \"services.d\"\n",
		"services.d/web.toml": "\n[[service]]\nname = \"web\"\nports = [{ port = 80 }]\nmax_queue = 5\nbackends = [{ address = \"10.1.0.11\" }]\n"} {
		must.Succeed(t, errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755), os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)))
	}
	warned := func(r result) bool {
		return strings.Contains(r.stderr, `services.d/web.toml:5: service "web": max_queue: has no effect`) && strings.Contains(r.stderr, "hint: add max_connections")
	}
	if r := run(t, Options{}, "config validate "+dir); r.code != command.ExitOK || !warned(r) {
		t.Error(r)
	}
	if r := run(t, Options{}, "config validate --strict "+dir); r.code != command.ExitError || !strings.Contains(r.stdout, "max_queue: has no effect") || r.stderr != "1 mistake\n" {
		t.Errorf("--strict: %s", r)
	}
	// A mistake elsewhere hides no warning.
	for file, mistake := range map[string]string{
		"services.d/db.toml":  "[[service]]\nname = \"db\"\nprots = 1\n",
		"services.d/web.toml": "\n[[service]]\nname = \"api\"\nprots = 1\n",
		"ironvip.toml":        "[health]\nprobers = \"none\"\n",
	} {
		path := filepath.Join(dir, file)
		before, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		must.Succeed(t, os.WriteFile(path, append(slices.Clip(before), mistake...), 0o644))
		if r := run(t, Options{}, "config validate "+dir); r.code != command.ExitError || !warned(r) || !strings.Contains(r.stderr, "mistake") || !strings.Contains(r.stdout, file) {
			t.Errorf("with a mistake in %s: %s", file, r)
		}
		if before == nil {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, before, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Completion without an agent proposes nothing, immediately and without a message.
func TestCompletionWithoutAgent(t *testing.T) {
	r := run(t, Options{}, "--addr unix:///nonexistent.sock __complete service get x")
	if r.stdout != ":4\n" || strings.Contains(r.stderr, "error") {
		t.Errorf("%s", r)
	}
}

// complete requests completions like a shell, for a command line with a last word that may be
// empty.
func complete(t *testing.T, a *fakeAgent, words []string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	Execute(t.Context(), Options{Environment: command.Environment{Stdout: &stdout, Stderr: &stderr, Getenv: func(name string) string { return map[string]string{command.EnvAddr: "unix://" + a.socket}[name] }}}, words)
	return stdout.String()
}

func TestNodeNewID(t *testing.T) {
	var asked offline.StoreRequest
	var fails error
	idle := Options{Store: node.Store{NewIdentity: func(req offline.StoreRequest) (offline.IdentityChange, error) {
		asked = req
		return offline.IdentityChange{Old: "id-1", New: "id-2"}, fails
	}}}
	for _, c := range []struct {
		line string
		want offline.StoreRequest
		err  error
		code int
		out  string
	}{
		{"", offline.StoreRequest{Config: command.DefaultConfig}, nil, command.ExitOK, "OLD ID  NEW ID\nid-1    id-2\n"},
		{"--config /c --state-dir /s -o name", offline.StoreRequest{Config: "/c", StateDir: "/s"}, nil, command.ExitOK, "id-2\n"},
		{"", offline.StoreRequest{Config: command.DefaultConfig}, &offline.Error{Err: errors.New("an agent runs"), Cause: offline.CauseRunning, Hint: "stop it first"}, command.ExitConflict, ""},
	} {
		asked, fails = offline.StoreRequest{}, c.err
		if r := run(t, idle, "node new-id "+c.line); r.code != c.code || r.stdout != c.out || asked != c.want {
			t.Errorf("%q: asked for %+v, %s", c.line, asked, r)
		}
	}
}

// The command replaces the id in the state file. It refuses while another process has the file
// open.
//
// Slow: the command waits for the lock of the state file before it refuses.
func TestNodeNewIDInAStateFile(t *testing.T) {
	dir := t.TempDir()
	db, err := store.Open(dir + "/" + store.FileName)
	if err != nil {
		t.Fatal(err)
	}
	first, err := membership.LoadIdentity(db)
	if err != nil {
		t.Fatal(err)
	}
	line := "node new-id --config " + dir + "/" + configs.ConfigName + " --state-dir " + dir
	if r := run(t, Options{}, line); r.code != command.ExitConflict || r.stdout != "" || !strings.Contains(r.stderr, "stop it first") {
		t.Errorf("while an agent runs: %s", r)
	}
	must.Succeed(t, db.Close())
	r := run(t, Options{}, line+" -o name")
	if db, err = store.Open(dir + "/" + store.FileName); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if now, err := membership.LoadIdentity(db); r.code != command.ExitOK || err != nil || now.ID == first.ID || now.ID != strings.TrimSpace(r.stdout) {
		t.Errorf("%s, the id is %+v, %v", r, now, err)
	}
}

// A problem that the line of its check has already is in no line of its own. Another one is, also if
// its text is part of that line.
func TestProblemsAreShownOnce(t *testing.T) {
	const lost, other = "DNS queries are not answered at 192.0.2.1:53: no interface of this host has the address", "DNS queries are not answered at 192.0.2.1:5"
	s := v1.NodeStatus{Ready: true, Checks: []v1.Check{
		{Name: "dns", Level: v1.LevelWarn, Message: lost + ", and 1 more", Hint: "add it", InMessage: 1, Problems: []v1.Problem{
			{Message: lost, Hint: "add it"}, {Message: other, Hint: "add it"}}},
		{Name: "store", Level: v1.LevelWarn, Message: "not a value", Problems: []v1.Problem{{Place: "leases/a", Message: "not a value"}}},
	}}
	a := newAgent(t)
	a.on("GET /v1/status", 200, s)
	for _, command := range []string{"doctor", "status"} {
		r := a.runWith(t, Options{Host: wellHost()}, command)
		if strings.Count(r.stdout, lost) != 1 || strings.Count(r.stdout, other) != 2 || strings.Count(r.stdout, "not a value") != 2 {
			t.Errorf("%s: %s", command, r)
		}
	}
}

// Commands accept the text that -o name prints.
func TestNamesAreTakenBack(t *testing.T) {
	a := fullAgent(t)
	for _, name := range strings.Fields(a.run(t, "service list -o name").stdout) {
		expect.True(t, a.run(t, "service explain "+name).code != command.ExitUsage, name)
	}
	backends := strings.Fields(a.run(t, "backend list -o name").stdout)
	expect.Len(t, backends, 6)
	for _, name := range backends {
		a.run(t, "backend ready "+name)
		service, id := name[:strings.LastIndexByte(name, '/')], name[strings.LastIndexByte(name, '/')+1:]
		if !strings.Contains(service, "/") {
			service = "default/" + service
		}
		expect.Equal(t, a.requests()[len(a.requests())-1].Line, "PUT /v1/services/"+service+"/backends/"+id+"/state")
	}
	for _, args := range []string{"web [2001:db8::1]:80", "web/[2001:db8::1]:80", "shop/web 2001:db8::1"} {
		expect.True(t, a.run(t, "backend ready "+args).code != command.ExitUsage, args)
	}
}
