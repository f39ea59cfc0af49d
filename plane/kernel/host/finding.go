package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// Finding is one thing that the dataplane needs of the host, and its state.
type Finding struct {
	Name     string // "kernel module ip_vs", "sysctl net.ipv4.vs.conntrack"
	OK       bool
	Unknown  bool   // not OK because this process may not check it
	Required bool   // the dataplane can't run without it
	Detail   string // what was found, and why it matters
	Remedy   string // a command, or what to do; "" if OK
}

// Err returns the problem of a finding that isn't OK.
func (f Finding) Err() error {
	return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s %s", f.Name, f.Detail), Hint: f.Remedy}
}

// Missing returns the required findings that aren't OK. A finding that could not be checked is missing only if no other is: a known
// one, such as a missing capability, is the cause.
func Missing(findings []Finding) (out []Finding) {
	known := slices.ContainsFunc(findings, func(f Finding) bool { return !f.OK && f.Required && !f.Unknown })
	for _, f := range findings {
		if !f.OK && f.Required && (!known || !f.Unknown) {
			out = append(out, f)
		}
	}
	return out
}

// Err returns the problems of what is Missing, or nil.
func Err(findings []Finding) error {
	var errs []error
	for _, f := range Missing(findings) {
		errs = append(errs, vip.Problem{
			Code: vip.CodeDataplane, Message: fmt.Sprintf("the dataplane needs %s: %s", f.Name, f.Detail), Hint: f.Remedy,
		})
	}
	return errors.Join(errs...)
}

// CheckCapability checks for the capability that every change of the dataplane needs.
func CheckCapability() Finding {
	f := Finding{Name: "capability CAP_NET_ADMIN", OK: true, Required: true, Detail: "held"}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&h, &data[0]); err != nil {
		f.OK, f.Detail = false, fmt.Sprintf("unknown: %v", err)
	} else if data[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		f.OK, f.Detail = false, "not held by this process"
	}
	if !f.OK {
		f.Remedy = "run the agent from its systemd unit, or as root"
	}
	return f
}

// MissingModule returns the finding for a missing kernel module.
func MissingModule(name, detail string, required bool) Finding {
	return Finding{Name: "kernel module " + name, Required: required, Detail: detail, Remedy: "modprobe " + name}
}

// denied is what to do if the kernel refuses a trial. The capability may be of another user namespace.
const denied = "run the agent with CAP_NET_ADMIN in the host's own user namespace"

// Denied returns the finding for a trial that this process may not make.
func Denied(name string, required bool, err error) Finding {
	return Finding{Name: name, Unknown: true, Required: required, Detail: "not checked: " + err.Error(), Remedy: denied}
}

// TrialOf returns the finding for a trial of a module. Err is the trial's outcome, and
// missing are the errors without the module: loading it cures no other one.
func TrialOf(module, detail string, required bool, err error, missing ...error) Finding {
	f := MissingModule(module, detail, required)
	switch {
	case err == nil:
		f.OK, f.Detail, f.Remedy = true, "usable", ""
	case errors.Is(err, unix.EPERM):
		return Denied(f.Name, required, err)
	case !slices.ContainsFunc(missing, func(m error) bool { return errors.Is(err, m) }):
		f.Detail, f.Remedy = err.Error(), ""
	}
	return f
}

// TryMessage sends one message and returns its outcome.
func TryMessage(ctx context.Context, protocol int, put func(b []byte) []byte) (outcome error) {
	c, err := netlink.Dial(protocol, &netlink.Counters{})
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Write(ctx, 1, func(b []byte, _ int) []byte { return put(b) }, func(_ int, err error) { outcome = err })
	return cmp.Or(err, outcome)
}

// Findings are the last findings about a host, by name. They may be used from several
// goroutines.
type Findings struct {
	mu  sync.Mutex
	all []Finding
}

// Set records a finding. It reports whether the finding has changed.
func (f *Findings) Set(x Finding) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.all, func(g Finding) bool { return g.Name == x.Name })
	if i < 0 {
		f.all = append(f.all, x)
		return true
	}
	changed = f.all[i] != x
	f.all[i] = x
	return changed
}

// Report records a finding, and logs it if it is new and not OK.
func (f *Findings) Report(log *slog.Logger, x Finding) {
	if f.Set(x) && !x.OK {
		log.Warn(x.Name+" is not as the dataplane needs it", "detail", x.Detail, "fix", x.Remedy)
	}
}

// Drifted reports whether x is a change for the worse, or unknown and not OK. It records that what x
// reports is OK.
func (f *Findings) Drifted(x Finding) bool {
	before, known := f.Get(x.Name)
	if x.OK {
		f.Set(x)
		return false
	}
	if known && !before.OK {
		f.Set(x) // with the value of now
		return false
	}
	return true
}

// Drift returns the sysctls that have changed since they were set, and those that were never set. It records
// which of the others have been repaired, and drops the findings about sysctls that aren't wanted any more.
func Drift(f *Findings, sysctl Tunables, wanted []Setting) (out []string) {
	names := map[string]bool{}
	for _, w := range wanted {
		x := sysctl.Check(w)
		names[x.Name] = true
		if f.Drifted(x) {
			out = append(out, x.Name+" "+x.Detail)
		}
	}
	f.Drop(func(name string) bool { return strings.HasPrefix(name, "sysctl ") && !names[name] })
	return out
}

// Drop removes the findings of names.
func (f *Findings) Drop(names func(string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = slices.DeleteFunc(f.all, func(x Finding) bool { return names(x.Name) })
}

// Get returns the last finding of a name.
func (f *Findings) Get(name string) (Finding, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.all, func(g Finding) bool { return g.Name == name })
	if i < 0 {
		return Finding{}, false
	}
	return f.all[i], true
}

// Repaired records that what a finding reported is usable now.
func (f *Findings) Repaired(name string) {
	if x, known := f.Get(name); known && !x.OK {
		f.Set(Finding{Name: name, OK: true, Required: x.Required, Detail: "usable"})
	}
}

func (f *Findings) List() []Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}
