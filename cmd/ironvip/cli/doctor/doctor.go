// Package doctor checks whether ironvip can work on a host, and suggests fixes.
//
// Its input is a Host (the files of /proc and /sys, what dataplanes need of it,
// disk facts)
// and what the config wants. Its outputs are findings in the order of the checks. It needs no
// agent and no root, and changes nothing. It reports what it may not read.
package doctor

import (
	"cmp"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/vip"
)

// Level is the severity of a finding.
type Level string

// OK needs no action. Warn works, but not as well or as safely as it could. Fail prevents ironvip
// from doing what the config requests.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"` // the check's stable name: "kernel", "state_dir"
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"` // a command or a setting
}

// Host is the machine to examine.
type Host struct {
	Files    fs.FS                            // the root directory; /proc and /sys are read from it
	PID      int                              // of this process
	Needs    func(*plane.Kind) []host.Finding // what a dataplane needs
	Disk     func(path string) (Disk, error)  // the file system that holds path
	Writable func(path string) (bool, error)  // whether this process may write into the directory
	State    func(path string) error          // the result of store.Check
	// Services lists the IPVS services of a dataplane with that device, and all others. It
	// may be nil.
	Services func(device string) (Services, error)
	// Firewall finds nftables rules that drop what must pass, and Route the device on the way to an address, with its
	// MTU. They may be nil.
	Firewall func(firewall.Query) ([]firewall.Drop, error)
	// Has tries a feature of the kernel. Not known: the kernel's version decides. It may be nil.
	Has func(linux.Feature) (has, known bool)
	// Cgroup says why there are no cgroups of version 2, and BPF why there is no system call bpf. They may be nil.
	Cgroup func() error
	BPF    func() error
	Route  func(netip.Addr) (device string, mtu int, err error)
	// Resolved returns the state of systemd-resolved for settings, without a change. It may be nil.
	Resolved func(resolved.Settings) resolved.State
	// Lookup looks up the text records of a name as other programs do. It may be nil without Resolved.
	Lookup func(name string) error
}

// Services are the IPVS services in the kernel that have an address.
type Services struct {
	Ours   []vip.FrontendKey // recorded as ours, or on an address of our device
	Others []vip.FrontendKey
}

// Disk describes a file system.
type Disk struct {
	Free     uint64 // bytes an unprivileged process may still write
	ReadOnly bool
}

// Want is what the config needs of the host.
type Want struct {
	Config     string // absolute path of the configuration's directory or file; command.DefaultConfig if empty
	Mode       string // dataplane.mode
	Connect    string // dataplane.connect; "" is "off"
	StateDir   string
	Device     string         // that carries the VIPs
	Pools      []netip.Prefix // the ranges VIPs are drawn from
	Excluded   []netip.Prefix // excluded from the pools
	RealServer bool           // the host takes packets from directors
	Tunnels    []netip.Addr   // the backends that this host reaches through tunnels
	Announce   Announce
	DNS        DNS
}

// Examine runs every check.
func Examine(h Host, w Want) []Finding {
	procs, procErr := processes(h.Files)
	agent := findAgent(h, procs, cmp.Or(w.Config, command.DefaultConfig))
	var out []Finding
	out = append(out, kernel(h))
	out = append(out, features(h, w)...)
	out = append(out, dataplane(h, w)...)
	out = append(out, connecting(h, w, agent)...)
	out = append(out, conntrack(h)...)
	out = append(out, firewalls(h, w)...)
	out = append(out, ipv6(h, w)...)
	out = append(out, forwarding(h, w)...)
	out = append(out, reversePath(h, w)...)
	out = append(out, tunnels(h, w)...)
	if procErr != nil {
		out = append(out, Finding{Warn, "processes", "can't list the processes that run here: " + procErr.Error(), ""})
	}
	out = append(out, neighbors(h, w, procs)...)
	out = append(out, rights(h, w, agent)...)
	out = append(out, announcer(h, w, procs)...)
	out = append(out, resolver(h, w.DNS)...)
	out = append(out, openFiles(h, w, agent))
	out = append(out, stateDir(h, w)...)
	out = append(out, stateFile(h, w)...)
	return out
}

// Worst returns the worst level among the findings.
func Worst(findings []Finding) Level {
	has := func(l Level) bool { return slices.ContainsFunc(findings, func(f Finding) bool { return f.Level == l }) }
	switch {
	case has(Fail):
		return Fail
	case has(Warn):
		return Warn
	}
	return OK
}
