package ipvs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// Finding is one thing that the dataplane needs of the host, and how it is.
type Finding struct {
	Name     string // "kernel module ip_vs", "sysctl net.ipv4.vs.conntrack"
	OK       bool
	Unknown  bool   // not OK because this process may not check it
	Required bool   // the dataplane can't run without it
	Detail   string // what was found, and why it matters
	Remedy   string // a command, or what to do; "" when OK
}

// err says of a finding that isn't OK what it keeps from being done.
func (f Finding) err() error {
	return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s %s", f.Name, f.Detail), Hint: f.Remedy}
}

// Check checks what the dataplane needs of this host, with trials where only the
// kernel knows. It starts no program and leaves nothing behind, but its requests
// make the kernel load the modules that it can load by itself. The ipvs dataplane
// can run if Usable accepts the findings. With realServer, Check leaves out the
// sysctls: a real server needs none until it has a frontend, and then the Target's
// Findings report them.
func Check(realServer bool) []Finding { return check(procSysNet, "/", realServer) }

// Usable reports whether nothing required is wrong. Err, its opposite, says
// what is.
func Usable(findings []Finding) bool { return Err(findings) == nil }

// Err says what keeps the dataplane from running, with the remedies, or nil.
func Err(findings []Finding) error {
	var errs []error
	for _, f := range findings {
		if f.OK || !f.Required {
			continue
		}
		errs = append(errs, vip.Problem{
			Code: vip.CodeDataplane, Message: fmt.Sprintf("ipvs needs %s: %s", f.Name, f.Detail), Hint: f.Remedy,
		})
	}
	return errors.Join(errs...)
}

func check(sysNet, root string, realServer bool) []Finding {
	capability := checkCapability()
	modules := moduleIndex(root, kernelRelease())
	ipvs := checkIPVS()
	out := []Finding{capability, ipvs}
	for _, s := range vip.Schedulers() {
		f := modules.check("ip_vs_" + s.String())
		// Services that ask for another scheduler do without.
		f.Required = s == vip.DefaultScheduler && ipvs.OK
		out = append(out, f)
	}
	ctx := context.Background()
	out = append(out, tryNFTables(ctx)...)
	out = append(out, tryDummy(ctx), modules.check("nf_conntrack"), tryConntrackNetlink(ctx))
	if ipvs.OK && !realServer { // without IPVS its sysctls don't exist
		s := sysctls{root: sysNet}
		for _, w := range settings(parseVersion(kernelRelease())) {
			f := s.check(w)
			if !f.OK {
				f.Detail += "; the agent sets it when it may"
			}
			out = append(out, f)
		}
	}
	return out
}

func checkCapability() Finding {
	f := Finding{Name: "capability CAP_NET_ADMIN", OK: true, Required: true, Detail: "held"}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&h, &data[0]); err != nil {
		f.OK, f.Detail = false, fmt.Sprintf("can't be told: %v", err)
	} else if data[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		f.OK, f.Detail = false, "not held by this process"
	}
	if !f.OK {
		f.Remedy = "run the agent from its systemd unit, or as root"
	}
	return f
}

func checkIPVS() Finding {
	f := Finding{Name: "kernel module ip_vs", OK: true, Required: true, Detail: "there"}
	ctx := context.Background()
	k, err := openKernel(ctx, &counters{})
	if err == nil {
		defer k.close()
		// Finding IPVS takes no rights; reading it takes those that writing does.
		_, err = k.service(ctx, vip.FrontendKey{Addr: netip.IPv4Unspecified(), Protocol: vip.TCP}, 0)
	}
	if err == nil {
		return f
	}
	f.OK, f.Detail, f.Remedy = false, err.Error(), "modprobe ip_vs"
	if errors.Is(err, unix.EPERM) {
		f.Remedy = "run the agent with CAP_NET_ADMIN in the host's own user namespace"
	}
	return f
}

// modules knows which kernel modules are there, and which could be loaded.
type modules struct {
	root, release string
	loadable      map[string]bool // nil when it can't be told
}

// moduleIndex reads the lists of the modules that the running kernel has.
func moduleIndex(root, release string) modules {
	m := modules{root: root, release: release}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		file, err := os.Open(filepath.Join(root, "lib/modules", release, list))
		if err != nil {
			continue
		}
		if m.loadable == nil {
			m.loadable = map[string]bool{}
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			path, _, _ := strings.Cut(lines.Text(), ":")
			name, _, _ := strings.Cut(filepath.Base(path), ".")
			m.loadable[strings.ReplaceAll(name, "-", "_")] = true
		}
		file.Close()
	}
	return m
}

// check looks for a module that the kernel loads by itself when it is needed.
func (m modules) check(name string) Finding {
	f := Finding{Name: "kernel module " + name, OK: true}
	_, err := os.Stat(filepath.Join(m.root, "sys/module", name))
	switch {
	case err == nil:
		f.Detail = "loaded"
	case m.loadable[name]:
		f.Detail = "loaded when needed"
	case m.loadable == nil:
		f.Detail = "not loaded; whether it can be is not known"
	default:
		f.OK, f.Detail, f.Remedy = false, fmt.Sprintf("kernel %s has no such module", m.release), "modprobe "+name
	}
	return f
}
