package doctor

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// needing returns what the dataplanes find on a machine.
func needing(ipvs, nft []host.Finding) func(*plane.Kind) []host.Finding {
	return func(k *plane.Kind) []host.Finding {
		return map[string][]host.Finding{configs.ModeIPVS: ipvs, configs.ModeNFT: nft}[k.Mode]
	}
}

// machine returns a host that meets all requirements. Each test removes something.
func machine(files map[string]string) Host {
	m := fstest.MapFS{
		"proc/sys/kernel/osrelease": {Data: []byte("6.1.0-56-cloud-amd64\n")},
		"proc/7/comm":               {Data: []byte("bash\n")},
		"proc/7/limits":             {Data: []byte("Max open files            1024                 1048576              files\n")},
	}
	for path, text := range files {
		m[path] = &fstest.MapFile{Data: []byte(text)}
	}
	return Host{Files: m, PID: 7,
		Needs:    needing([]ipvs.Finding{{Name: "kernel module ip_vs", OK: true, Required: true}}, []ipvs.Finding{{Name: "nf_tables", OK: true, Required: true}}),
		Disk:     func(string) (Disk, error) { return Disk{Free: 1 << 30}, nil },
		Writable: func(string) (bool, error) { return true, nil },
		State:    func(string) error { return nil },
	}
}

var want = Want{Mode: configs.ModeAuto, StateDir: "/var/lib/ironvip", Pools: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}}

// args returns a command line as in /proc.
func args(words ...string) string { return strings.Join(words, "\x00") + "\x00" }

// balancing is a configuration with dataplane.connect.
func balancing(connect string) Want {
	w := want
	w.Connect = connect
	return w
}

// announcing is a configuration that announces VIPs.
var announcing = func() Want {
	w := want
	w.Announce = Announce{Modes: []string{"l2"}, Interfaces: map[string]string{"eth0": "announce.interfaces"}}
	return w
}()

func TestHealthyHost(t *testing.T) {
	findings := Examine(machine(nil), want)
	expect.Equal(t, Worst(findings), OK, "%+v", findings)
	for _, f := range findings {
		if f.Check == "" || f.Text == "" || f.Fix != "" {
			t.Errorf("a finding of a healthy host: %+v", f)
		}
	}
}

func TestFindings(t *testing.T) {
	const agentStatus = "Name:\tironvip\nCapEff:\t0000000000003400\n"
	agent := func(status string) map[string]string {
		return map[string]string{"proc/8/comm": "ironvip\n", "proc/8/cmdline": args("/usr/bin/ironvip", "agent"), "proc/8/status": status,
			"proc/8/limits": "Max open files            1024                 524288              files\n"}
	}
	kubeProxy := func(words ...string) map[string]string {
		return map[string]string{"proc/9/comm": "kube-proxy\n", "proc/9/cmdline": args(append([]string{"/usr/local/bin/kube-proxy"}, words...)...)}
	}
	with := func(a map[string]string, path, text string) map[string]string { a[path] = text; return a }
	keepalived := func(config string) map[string]string { // several processes with one command line
		line := args("keepalived", "-f", "/etc/k.conf")
		return map[string]string{"proc/9/comm": "keepalived\n", "proc/9/cmdline": line, "proc/10/comm": "keepalived\n", "proc/10/cmdline": line, "etc/k.conf": config}
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Want
		level Level
		check string
		says  string // in the text or the fix; "": the check finds nothing
	}{
		{"no announcer", map[string]string{"sys/class/net/eth0/mtu": "1500"}, announcing, Fail, "announcer", "no announcer runs: nothing is announced, and announce.mode is l2"},
		{"announcer", map[string]string{"proc/9/comm": "ironvip", "proc/9/cmdline": args("/usr/bin/ironvip", "announcer"), "proc/9/status": agentStatus, "sys/class/net/eth0/mtu": "1500"}, announcing, OK, "announcer", "announcer (pid 9) runs"},
		{"announcer without rights", map[string]string{"proc/9/comm": "ironvip", "proc/9/cmdline": args("/usr/bin/ironvip", "announcer"), "proc/9/status": "CapEff:\t0000000000001000\n", "sys/class/net/eth0/mtu": "1500"}, announcing, Fail, "announcer", "announcer (pid 9) has no CAP_NET_RAW"},
		{"announcing on a missing interface", map[string]string{"proc/9/comm": "ironvip", "proc/9/cmdline": args("/usr/bin/ironvip", "announcer"), "proc/9/status": agentStatus}, announcing, Fail, "announce_interface", "interface eth0 of announce.interfaces does not exist"},
		{"no announcer needed", nil, want, OK, "announcer", ""},
		{"old kernel", map[string]string{"proc/sys/kernel/osrelease": "4.19.0-26-amd64"}, want, Warn, "kernel", "kernel 4.19 is older than 5.10"},
		{"new kernel", map[string]string{"proc/sys/kernel/osrelease": "7.0-rc1"}, want, OK, "kernel", "kernel 7.0-rc1"},
		{"connect", nil, balancing(configs.ConnectOn), OK, "connect", "connect: Linux 5.14, cgroup2"},
		{"connect with an old kernel", map[string]string{"proc/sys/kernel/osrelease": "5.10.0-32-amd64"}, balancing(configs.ConnectOn), Fail, "connect", "run Linux 5.14 or later"},
		{"connect without rights", agent(agentStatus), balancing(configs.ConnectOn), Fail, "connect", "agent (pid 8) has no CAP_BPF"},
		{"connect without rights: the drop-in", agent(agentStatus), balancing(configs.ConnectAuto), Warn, "connect", "SystemCallFilter=bpf"},
		{"connect with rights", agent("CapEff:\t0000008000003400\n"), balancing(configs.ConnectOn), OK, "connect", "cgroup2, CAP_BPF, CAP_NET_ADMIN"},
		{"connect is off", nil, balancing(configs.ConnectOff), OK, "connect", ""},

		{"odd kernel", map[string]string{"proc/sys/kernel/osrelease": "custom"}, want, Warn, "kernel", "unknown version format"},

		{"connection table", map[string]string{"proc/sys/net/netfilter/nf_conntrack_count": "79\n", "proc/sys/net/netfilter/nf_conntrack_max": "100\n"}, want, OK, "conntrack", "79 of 100"},
		{"connection table nearly full", map[string]string{"proc/sys/net/netfilter/nf_conntrack_count": "80\n", "proc/sys/net/netfilter/nf_conntrack_max": "100\n"}, want, Warn, "conntrack", "sysctl -w net.netfilter.nf_conntrack_max=200"},

		{"kube-proxy, iptables by default", kubeProxy(), want, OK, "kube_proxy", ""},
		{"kube-proxy, ipvs by flag", kubeProxy("--proxy-mode", "ipvs"), want, Warn, "kube_proxy", "--ipvs-exclude-cidrs 192.0.2.0/24,2001:db8::/64"},
		{"kube-proxy, ipvs, beside nft", kubeProxy("--proxy-mode", "ipvs"), Want{Mode: configs.ModeNFT, StateDir: "/s", Pools: want.Pools}, OK, "kube_proxy", ""},
		{"kube-proxy, ipvs, excludes exactly our addresses us", kubeProxy("--proxy-mode=ipvs", "--ipvs-exclude-cidrs=10.0.0.0/8,192.0.2.0/24,2001:db8::/64"), want, OK, "kube_proxy", "excludes our addresses"},
		{"kube-proxy, ipvs, excludes our addresses more", kubeProxy("--proxy-mode=ipvs", "--ipvs-exclude-cidrs", "192.0.0.0/16,::/0"), want, OK, "kube_proxy", "excludes our addresses"},
		{"kube-proxy, ipvs, spares a part", kubeProxy("--proxy-mode=ipvs", "--ipvs-exclude-cidrs", "192.0.2.0/25,::/0"), want, Warn, "kube_proxy", "deletes services"},
		{"kube-proxy's device alone", map[string]string{"sys/class/net/kube-ipvs0/mtu": "1500"}, want, Warn, "kube_proxy", "device kube-ipvs0 exists"},
		{"kube-router's device alone", map[string]string{"sys/class/net/kube-dummy-if/mtu": "1500"}, want, Warn, "kube_router", "device kube-dummy-if exists"},
		{"kube-proxy's device, and its process in another mode", with(kubeProxy(), "sys/class/net/kube-ipvs0/mtu", "1500"), want, OK, "kube_proxy", ""},
		{"kube-proxy, ipvs, spares one pool only", kubeProxy("--proxy-mode=ipvs", "--ipvs-exclude-cidrs=192.0.2.0/24"), want, Warn, "kube_proxy", "2001:db8::/64"},
		{"kube-proxy, config not readable", kubeProxy("--config=/var/lib/kube-proxy/config.conf"), want, Warn, "kube_proxy", "/var/lib/kube-proxy/config.conf can't be read"},
		{"kube-proxy, config with ipvs", with(kubeProxy("--config=/var/lib/kube-proxy/config.conf"), "proc/9/root/var/lib/kube-proxy/config.conf",
			"kind: KubeProxyConfiguration\nipvs:\n  excludeCIDRs: null\n  scheduler: rr\nmode: ipvs\n"), want, Warn, "kube_proxy", "in /var/lib/kube-proxy/config.conf: ipvs.excludeCIDRs: [192.0.2.0/24,2001:db8::/64]"},
		{"kube-proxy, config spares us", with(kubeProxy("--config=/c"), "proc/9/root/c",
			"ipvs:\n  excludeCIDRs:\n  - 192.0.2.0/24\n  - \"2001:db8::/64\"\nmode: \"ipvs\"\n"), want, OK, "kube_proxy", "excludes our addresses"},
		{"kube-proxy, config spares us in a line", with(kubeProxy("--config=/c"), "proc/9/root/c",
			"ipvs:\n  excludeCIDRs: [\"192.0.2.0/24\", '2001:db8::/64']\nmode: ipvs\n"), want, OK, "kube_proxy", "excludes our addresses"},
		{"kube-proxy, another block's mode", with(kubeProxy("--config=/c"), "proc/9/root/c", "detectLocal:\n  mode: ipvs\nmode: iptables\n"), want, OK, "kube_proxy", ""},
		{"kube-proxy beside the userspace dataplane", kubeProxy("--proxy-mode=ipvs"), Want{Mode: configs.ModeProxy, StateDir: "/s"}, OK, "kube_proxy", ""},
		{"kube-proxy, no pools yet", kubeProxy("--proxy-mode=ipvs"), Want{Mode: configs.ModeAuto, StateDir: "/s"}, Warn, "kube_proxy", "POOL_CIDRS"},

		{"kube-router", map[string]string{"proc/9/comm": "kube-router", "proc/9/cmdline": args("kube-router")}, want, Warn, "kube_router", "--excluded-cidrs 192.0.2.0/24"},
		{"kube-router without its service proxy", map[string]string{"proc/9/comm": "kube-router", "proc/9/cmdline": args("kube-router", "--run-service-proxy=false")}, want, OK, "kube_router", "doesn't use IPVS"},
		{"kube-router that spares us", map[string]string{"proc/9/comm": "kube-router", "proc/9/cmdline": args("kube-router", "--excluded-cidrs=192.0.2.0/24,2001:db8::/32")}, want, OK, "kube_router", "excludes our addresses"},
		{"ldirectord", map[string]string{"proc/9/comm": "ldirectord"}, want, Warn, "ldirectord", "outside of 192.0.2.0/24"},

		{"keepalived that flushes", keepalived("global_defs {\n  lvs_flush\n}\n"), want, Warn, "keepalived", "take lvs_flush out of /etc/k.conf"},
		{"keepalived that flushes its own", keepalived("global_defs {\n  lvs_flush_on_stop VS\n}\n"), want, OK, "keepalived", "doesn't change other programs' IPVS services"},
		{"keepalived with VRRP alone", with(map[string]string{"proc/9/comm": "keepalived", "proc/9/cmdline": args("keepalived", "--vrrp", "-f", "/etc/k.conf")},
			"etc/k.conf", "global_defs {\n lvs_flush\n}\nvirtual_server 192.0.2.5 80 {\n}\n"), want, OK, "keepalived", "doesn't change"},
		{"keepalived, included", with(keepalived("include conf.d/*.conf\n"), "etc/conf.d/a.conf", "include ../k.conf\nlvs_flush\n"), want, Warn, "keepalived", "keepalived runs here with lvs_flush"},
		{"keepalived, comment", keepalived("global_defs {\n  # lvs_flush\n}\n"), want, OK, "keepalived", "doesn't change"},
		{"keepalived, default config not readable", map[string]string{"proc/9/comm": "keepalived"}, want, Warn, "keepalived", "/etc/keepalived/keepalived.conf can't be read"},

		{"agent with its rights", agent(agentStatus), want, OK, "capabilities", "agent (pid 8) has CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW"},
		{"agent without rights", agent("CapEff:\t0000000000000400\n"), want, Warn, "capabilities", "has no CAP_NET_ADMIN, CAP_NET_RAW"},
		{"agent without rights, ipvs configured", agent("CapEff:\t0\n"), Want{Mode: configs.ModeIPVS, StateDir: "/s"}, Fail, "capabilities", "AmbientCapabilities="},
		{"agent without rights, userspace", agent("CapEff:\t0\n"), Want{Mode: configs.ModeProxy, StateDir: "/s"}, OK, "capabilities", ""},
		{"the agent of another configuration", with(agent("CapEff:\t0\n"), "proc/8/cmdline", args("/usr/bin/ironvip", "agent", "--config", "/srv/other")), want, OK, "capabilities", ""},
		{"the limit of another configuration's agent", with(agent(agentStatus), "proc/8/cmdline", args("/usr/bin/ironvip", "agent", "--config=/srv/other")), want, OK, "open_files", "this shell may open 1048576 files"},
		{"the agent of a configuration by its directory", with(agent(agentStatus), "proc/8/cmdline", args("/usr/bin/ironvip", "agent", "--config", "/srv/other/")),
			Want{Mode: configs.ModeAuto, StateDir: "/s", Config: "/srv/other/ironvip.toml"}, OK, "capabilities", "agent (pid 8)"},
		{"agent without rights, nft configured", agent("CapEff:\t0\n"), Want{Mode: configs.ModeNFT, StateDir: "/s"}, Fail, "capabilities", "AmbientCapabilities="},
		{"another agent when this configuration has none", agent("CapEff:\t0\n"), Want{Mode: configs.ModeIPVS, StateDir: "/s", Config: "/srv/other"}, OK, "capabilities", ""},
		{"the agent's limit counts", agent(agentStatus), want, OK, "open_files", "agent (pid 8) may open 524288 files"},
		{"too few files to start", map[string]string{"proc/7/limits": "Max open files   64   64   files\n"}, want, Fail, "open_files", "doesn't start"},
		{"few files", map[string]string{"proc/7/limits": "Max open files   1024   4096   files\n"}, want, Warn, "open_files", "LimitNOFILE="},
		{"few files, nft configured", map[string]string{"proc/7/limits": "Max open files   1024   4096   files\n"}, Want{Mode: configs.ModeNFT, StateDir: "/s"}, OK, "open_files", "this shell may open 4096 files"},
		{"unlimited files", map[string]string{"proc/7/limits": "Max open files   1024   unlimited   files\n"}, want, OK, "open_files", "may open unlimited files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := only(Examine(machine(c.files), c.want), c.check)
			switch {
			case c.says == "" && len(found) > 0:
				t.Errorf("found %+v, want nothing", found)
			case c.says == "":
			case len(found) != 1 || found[0].Level != c.level || !strings.Contains(found[0].Text+" "+found[0].Fix, c.says):
				t.Errorf("found %+v, want one of level %q that says %q", found, c.level, c.says)
			}
		})
	}
}

// An agent in another network namespace belongs to a container. One with a relative
// path of its configuration is found by its working directory.
func TestAgentOfThisHost(t *testing.T) {
	for name, c := range map[string]struct {
		config, cwd, network string
		found                bool
	}{
		"same network":                  {"/etc/ironvip", "/", "net:[1]", true},
		"another network":               {"/etc/ironvip", "/", "net:[2]", false},
		"unreadable network":            {"/etc/ironvip", "/", "", true},
		"relative path":                 {"ironvip", "/etc", "net:[1]", true},
		"relative path elsewhere":       {"ironvip", "/srv", "net:[1]", false},
		"relative path, cwd unreadable": {"ironvip", "", "net:[1]", false},
	} {
		h := machine(map[string]string{"proc/8/comm": "ironvip\n", "proc/8/cmdline": args("ironvip", "agent", "--config", c.config)})
		files := h.Files.(fstest.MapFS)
		for path, target := range map[string]string{"proc/7/ns/net": "net:[1]", "proc/8/ns/net": c.network, "proc/8/cwd": c.cwd} {
			if target != "" {
				files[path] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
			}
		}
		procs := must.Get(processes(h.Files))(t)
		expect.Equal(t, findAgent(h, procs, command.DefaultConfig) != nil, c.found, "%s: found", name)
	}
}

func only(findings []Finding, check string) []Finding {
	var out []Finding
	for _, f := range findings {
		if f.Check == check {
			out = append(out, f)
		}
	}
	return out
}

func TestDataplane(t *testing.T) {
	missing := ipvs.Finding{Name: "kernel module ip_vs", Required: true, Detail: "the kernel has no IPVS", Remedy: "modprobe ip_vs"}
	for _, c := range []struct {
		name string
		mode string
		has  []ipvs.Finding
		want []Finding
	}{
		{"nft instead", configs.ModeAuto, []ipvs.Finding{{Name: "kernel module ip_vs", Required: true, Detail: "no", Remedy: "modprobe ip_vs"}, {Name: "nf_tables", OK: true, Required: true}}, []Finding{
			{OK, "ipvs", "ipvs: nf_tables", ""}, {Warn, "ipvs", "kernel module ip_vs: no", "modprobe ip_vs"},
			{OK, "dataplane", "dataplane: auto; until this is fixed, the nft dataplane is used", ""}}},
		{"all there", configs.ModeAuto, []ipvs.Finding{{Name: "kernel module ip_vs", OK: true, Required: true}, {Name: "sysctl net.ipv4.ip_forward", OK: true}},
			[]Finding{{OK, "ipvs", "ipvs: ip_vs, net.ipv4.ip_forward", ""}}},
		{"required, auto", configs.ModeAuto, []ipvs.Finding{missing, {Name: "kernel module ip_vs_wrr", OK: true, Detail: "not loaded; whether it can be is not known"}}, []Finding{
			{Warn, "ipvs", "kernel module ip_vs: the kernel has no IPVS", "modprobe ip_vs"},
			{OK, "dataplane", "dataplane: auto; until this is fixed, the userspace dataplane is used", ""}}},
		{"required, ipvs", configs.ModeIPVS, []ipvs.Finding{missing}, []Finding{{Fail, "ipvs", "kernel module ip_vs: the kernel has no IPVS", "modprobe ip_vs"}}},
		{"required, userspace", configs.ModeProxy, []ipvs.Finding{missing}, []Finding{{OK, "dataplane", "dataplane: userspace, as configured; it needs nothing of the kernel", ""}}},
		{"nft", configs.ModeNFT, []ipvs.Finding{{Name: "capability CAP_NET_ADMIN", OK: true, Required: true}, {Name: "nf_tables", OK: true, Required: true},
			{Name: "kernel module nft_numgen", Required: true, Detail: `nf_tables has no expression "numgen"`, Remedy: "modprobe nft_numgen"},
			{Name: "sysctl net.ipv4.ip_forward", Detail: "is 0, needs 1", Remedy: "sysctl -w net.ipv4.ip_forward=1"}}, []Finding{
			{OK, "nft", "nft: CAP_NET_ADMIN, nf_tables", ""},
			{Fail, "nft", `kernel module nft_numgen: nf_tables has no expression "numgen"`, "modprobe nft_numgen"},
			{Warn, "nft", "net.ipv4.ip_forward is 0, needs 1", "sysctl -w net.ipv4.ip_forward=1"}}},
		{"nft, no rights to look", configs.ModeNFT, []ipvs.Finding{{Name: "capability CAP_NET_ADMIN", Required: true, Detail: "not held"}}, []Finding{
			{Warn, "nft", "this user may not read nf_tables (no CAP_NET_ADMIN): some requirements were not checked", "run ironvip doctor as root"}}},
		{"not required", configs.ModeIPVS, []ipvs.Finding{{Name: "sysctl net.ipv4.vs.conntrack", Detail: "is 0, needs 1", Remedy: "sysctl -w net.ipv4.vs.conntrack=1"}},
			[]Finding{{Warn, "ipvs", "net.ipv4.vs.conntrack is 0, needs 1", "sysctl -w net.ipv4.vs.conntrack=1"}}},
		{"no rights to look", configs.ModeIPVS, []ipvs.Finding{{Name: "capability CAP_NET_ADMIN", Required: true, Detail: "not held"},
			{Name: "nf_tables", Unknown: true, Required: true, Detail: "operation not permitted"},
			{Name: "kernel module dummy", Unknown: true, Required: true, Detail: "not checked: operation not permitted"}, {Name: "kernel module ip_vs", OK: true, Required: true}},
			[]Finding{{OK, "ipvs", "ipvs: ip_vs", ""},
				{Warn, "ipvs", "this user may not read IPVS and nf_tables (no CAP_NET_ADMIN): some requirements were not checked", "run ironvip doctor as root"}}},
	} {
		h := machine(nil)
		// Only the selected dataplane is checked.
		h.Needs = needing(c.has, []ipvs.Finding{missing})
		if c.name == "nft instead" {
			h.Needs = needing(c.has, nil)
		}
		if c.mode == configs.ModeNFT {
			h.Needs = needing(nil, c.has)
		}
		got := dataplane(h, Want{Mode: c.mode})
		if len(got) != len(c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
			continue
		}
		for i := range got {
			expect.Equal(t, got[i], c.want[i], c.name)
		}
	}
}

func TestStateDir(t *testing.T) {
	for _, c := range []struct {
		name     string
		disk     Disk
		writable bool
		err      error
		level    Level
		says     string
	}{
		{"healthy", Disk{Free: 1 << 30}, true, nil, OK, "1024 MiB free"},
		{"another user's", Disk{Free: 1 << 30}, false, nil, OK, "not writable for this user"},
		{"little space", Disk{Free: diskWarn - 1}, true, nil, Warn, "free space there"},
		{"no space", Disk{Free: diskFail - 1}, true, nil, Fail, "no lease can be stored"},
		{"read-only", Disk{Free: 1 << 30, ReadOnly: true}, true, nil, Fail, "read-only"},
		{"missing", Disk{}, false, &fs.PathError{Op: "stat", Path: "/s", Err: fs.ErrNotExist}, Warn, "does not exist"},
		{"a file", Disk{}, false, &fs.PathError{Op: "open", Path: "/s", Err: errors.New("not a directory")}, Warn, "not a directory"},
	} {
		h := machine(nil)
		h.Disk = func(string) (Disk, error) { return c.disk, nil }
		h.Writable = func(string) (bool, error) { return c.writable, c.err }
		got := stateDir(h, Want{StateDir: "/s"})
		if len(got) != 1 || got[0].Level != c.level || !strings.Contains(got[0].Text+" "+got[0].Fix, c.says) {
			t.Errorf("%s: %+v, want %q and %q", c.name, got, c.level, c.says)
		}
	}
}

func keys(list ...string) []vip.FrontendKey {
	var out []vip.FrontendKey
	for _, s := range list {
		ap := netip.MustParseAddrPort(s)
		out = append(out, vip.FrontendKey{Addr: ap.Addr(), Port: ap.Port(), Protocol: vip.TCP})
	}
	return out
}

// With the services in the kernel, the advice is exact: it includes node ports, and names foreign
// services in our pools.
func TestServicesInTheKernel(t *testing.T) {
	kube := map[string]string{"proc/9/comm": "kube-proxy\n", "proc/9/cmdline": args("kube-proxy", "--proxy-mode=ipvs", "--ipvs-exclude-cidrs=192.0.2.0/24,2001:db8::/64")}
	device := map[string]string{"sys/class/net/kube-ipvs0/mtu": "1500"}
	ours, others := keys("192.0.2.1:80", "198.51.100.1:30080", "198.51.100.1:30081"), keys("10.0.0.1:80", "10.0.0.2:80", "203.0.113.1:80")
	for _, c := range []struct {
		name     string
		files    map[string]string
		services Services
		err      error
		check    string
		says     string // "": no finding
	}{
		{"pools alone", kube, Services{Ours: ours[:1], Others: others}, nil, "kube_proxy", "excludes our addresses"},
		{"node ports", kube, Services{Ours: ours, Others: others}, nil, "kube_proxy", "--ipvs-exclude-cidrs 192.0.2.0/24,2001:db8::/64,198.51.100.1/32"},
		{"no rights to look", kube, Services{}, errors.New("operation not permitted"), "kube_proxy", "excludes our addresses"},
		{"kube-proxy unseen", device, Services{Others: others}, nil, "kube_proxy", "runs or ran here; if"},
		{"kube-proxy unseen, no rights", device, Services{}, errors.New("operation not permitted"), "kube_proxy", "runs or ran here; if"},
		{"others' outside of our pools", nil, Services{Ours: ours, Others: others}, nil, "foreign_services", ""},
		{"others' in our pools", nil, Services{Others: append(keys("192.0.2.7:80", "192.0.2.7:81", "192.0.2.200:80", "[2001:db8::1]:80"), others...)}, nil, "foreign_services",
			`192.0.2.7:80/tcp, 192.0.2.7:81/tcp, [2001:db8::1]:80/tcp; the agent removes them ipvsadm -D, or in the pool: exclude = ["192.0.2.7/32", "2001:db8::1/128"]`},
	} {
		h := machine(c.files)
		h.Services = func(device string) (Services, error) {
			expect.Equal(t, device, "ironvip0", "asked for device")
			return c.services, c.err
		}
		w := want
		w.Device, w.Excluded = "ironvip0", []netip.Prefix{netip.MustParsePrefix("192.0.2.192/26")}
		found := only(Examine(h, w), c.check)
		switch {
		case c.says == "" && len(found) > 0:
			t.Errorf("%s: found %+v, want nothing", c.name, found)
		case c.says == "":
		case len(found) != 1 || !strings.Contains(found[0].Text+" "+found[0].Fix, c.says):
			t.Errorf("%s: found %+v, want one that says %q", c.name, found, c.says)
		}
	}
	expect.Equal(t, firstFew(strings.Fields("a b c d e f g")), "a, b, c, d, e and 2 more")
}

// The check of the state file reports what an agent would report at its start.
func TestStateFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, store.FileName)
	said := func(what string, level Level, says string) {
		t.Helper()
		h := machine(nil)
		h.State = store.Check
		w := want
		w.StateDir = dir
		found := only(Examine(h, w), "state_file")
		if len(found) != 1 || found[0].Level != level || !strings.Contains(found[0].Text, says) || !strings.Contains(found[0].Text, path) {
			t.Errorf("%s: found %+v, want %s and %q", what, found, level, says)
		}
		if (what == "damaged" || what == "empty") && !strings.Contains(found[0].Fix, "backup") {
			t.Errorf("%s: fix %q", what, found[0].Fix)
		}
	}
	said("none", OK, "starts without leases")
	db := must.Get(store.Open(path))(t)
	said("an agent runs", OK, "in use by an agent")
	must.Succeed(t, db.Close())
	said("no agent runs", OK, "is intact")
	for _, c := range []struct{ name, content, says string }{{"empty", "", "it is empty"}, {"damaged", "no database", "damaged"}} {
		must.Succeed(t, os.WriteFile(path, []byte(c.content), 0o600))
		said(c.name, Fail, c.says)
	}
	must.Succeed(t, os.Remove(path))
	must.Succeed(t, os.Mkdir(path, 0o700))
	said("a directory", Fail, "not a regular file")
	h := machine(nil)
	h.State = func(path string) error { return &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission} }
	if found := only(Examine(h, want), "state_file"); len(found) != 1 || found[0].Level != OK || !strings.Contains(found[0].Text, "as root") {
		t.Errorf("no rights: found %+v", found)
	}
}

// A host with an unreadable /proc causes warnings, no panic and no missing findings.
func TestUnreadableHost(t *testing.T) {
	h := machine(nil)
	h.Files = fstest.MapFS{}
	h.Disk = func(string) (Disk, error) { return Disk{}, errors.New("no") }
	findings := Examine(h, want)
	expect.Equal(t, Worst(findings), Warn, "%+v", findings)
	for _, check := range []string{"kernel", "processes", "open_files", "state_dir"} {
		if found := only(findings, check); len(found) != 1 || found[0].Level != Warn {
			t.Errorf("%s: %+v, want one warning", check, found)
		}
	}
}

// The checks run on this machine.
func TestThisHost(t *testing.T) {
	h := ThisHost(false)
	if got := kernel(h); got.Level != OK && !strings.Contains(got.Text, "older") {
		t.Errorf("kernel: %+v", got)
	}
	dir := t.TempDir()
	if got := stateDir(h, Want{StateDir: dir}); len(got) != 1 || !strings.Contains(got[0].Text, "MiB free") {
		t.Errorf("state directory: %+v", got)
	}
	if got := stateDir(h, Want{StateDir: dir + "/none"}); got[0].Level != Warn || !strings.Contains(got[0].Text, "does not exist") {
		t.Errorf("no state directory: %+v", got)
	}
	if got := openFiles(h, Want{}, nil); !strings.Contains(got.Text, "may open") {
		t.Errorf("limits: %+v", got)
	}
	_, err := processes(h.Files)
	expect.Succeed(t, err)
}

// A feature that the kernel lacks is named if the configuration uses it: by a trial, or else by the kernel's version. The trial
// decides on kernels of distributions, which have features of later ones.
func TestKernelFeatures(t *testing.T) {
	old := map[string]string{"proc/sys/kernel/osrelease": "5.10.0-32-cloud-amd64\n"}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Want
		has   func(linux.Feature) (bool, bool)
		lacks []linux.Feature
	}{
		{"new kernel", nil, announcing, nil, nil},
		{"old kernel", old, announcing, nil, []linux.Feature{linux.OwnedTables, linux.NetnsCookie, linux.Egress, linux.RunEstimation}},
		{"old kernel that announces nothing", old, want, nil, []linux.Feature{linux.OwnedTables, linux.NetnsCookie, linux.RunEstimation}},
		{"old kernel, real server", old, Want{Mode: configs.ModeAuto, RealServer: true, StateDir: "/s"}, nil, nil},
		{"old kernel, proxy", old, Want{Mode: configs.ModeProxy, StateDir: "/s"}, nil, []linux.Feature{linux.NetnsCookie}},
		{"older kernel, nft", map[string]string{"proc/sys/kernel/osrelease": "5.4.0"}, Want{Mode: configs.ModeNFT, StateDir: "/s"}, nil, []linux.Feature{linux.ConntrackFilter, linux.OwnedTables}},
		{"old kernel with features of later ones", old, announcing, func(f linux.Feature) (bool, bool) { return true, true }, nil},
		{"new kernel without a feature", nil, announcing, func(f linux.Feature) (bool, bool) { return false, f == linux.Egress }, []linux.Feature{linux.Egress}},
	} {
		h := machine(c.files)
		h.Has = c.has
		got := only(Examine(h, c.want), "kernel_feature")
		if len(got) != len(c.lacks) {
			t.Errorf("%s: %+v", c.name, got)
			continue
		}
		for i, f := range c.lacks {
			level := OK
			if f == linux.Egress {
				level = Warn
			}
			if got[i].Level != level || !strings.Contains(got[i].Text, strings.ReplaceAll(f.Name, "`", "")+" (Linux "+f.First()+"): "+f.Without) || (got[i].Fix != "") != (level == Warn) {
				t.Errorf("%s: %+v", c.name, got[i])
			}
		}
	}
}

// A kernel without the system call bpf is named before the agent refuses it.
func TestConnectWithoutBPF(t *testing.T) {
	h := machine(nil)
	h.BPF = func() error { return errors.New("no bpf") }
	found := connecting(h, balancing(configs.ConnectOn), nil)
	must.Equal(t, len(found), 1)
	expect.Equal(t, found[0].Level, Fail)
	expect.Contains(t, found[0].Text, "can't work: no bpf")
	expect.Contains(t, found[0].Fix, "CONFIG_BPF_SYSCALL")
}
