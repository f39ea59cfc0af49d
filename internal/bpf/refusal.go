// Package bpf explains why the kernel doesn't accept a BPF program.
package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// RefusedError says why the kernel doesn't accept the program.
type RefusedError struct {
	Reason string
	Hint   string // what to do; may be empty
	Err    error  // of the kernel
}

func (e *RefusedError) Error() string { return e.Reason }
func (e *RefusedError) Unwrap() error { return e.Err }

// Hint returns what to do about an error; "" if nothing is known.
func Hint(err error) string {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return refused.Hint
	}
	return ""
}

// capabilities are those that the kernel asks for, with their numbers.
var capabilities = []struct {
	name string
	bit  uint
}{{"CAP_BPF", unix.CAP_BPF}, {"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}}

// RightsHint is what to do without the capabilities.
const RightsHint = "add AmbientCapabilities=, CapabilityBoundingSet= of CAP_BPF CAP_NET_ADMIN and SystemCallFilter=bpf to the systemd unit, or run as root"

// Refusal explains an error of loading or attaching a program, unless it is a RefusedError. Needs is what an older kernel lacks, such as "sk_lookup, which
// Linux 5.9 and later have", and list the command that lists what is attached there.
func Refusal(err error, needs, list string) error {
	out := &RefusedError{Reason: "the kernel refuses the program: " + err.Error(), Err: err}
	if _, rejected := errors.AsType[*ebpf.VerifierError](err); rejected {
		out.Reason = "the kernel's verifier rejects the program: " + err.Error()
		out.Hint = "report this with the version of the kernel"
	}
	lacks := lacking()
	if known, is := errors.AsType[*RefusedError](err); is && len(lacks) == 0 {
		return known
	}
	switch {
	case len(lacks) > 0: // the library may say instead that the kernel lacks something
		out.Reason = "this process lacks " + strings.Join(lacks, " and ")
		out.Hint = RightsHint
	case errors.Is(err, unix.EPERM):
		out.Reason = "BPF is forbidden (EPERM): by a seccomp filter, a security module or the limit of locked memory"
		out.Hint = "allow the system call bpf (SystemCallFilter= of the unit), and set LimitMEMLOCK=infinity before Linux 5.11"
	case Missing() != nil:
		return Missing()
	case errors.Is(err, unix.ENOMEM):
		out.Reason = "the kernel has no memory for the maps (ENOMEM)"
	case errors.Is(err, unix.E2BIG):
		out.Reason = "too many programs are attached at the same place"
		out.Hint = "see them with: " + list
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		out.Reason = fmt.Sprintf("this kernel has no %s: %v", needs, err)
	}
	return out
}

// MissingHint is what to do without the system call.
const MissingHint = "run a kernel with CONFIG_BPF_SYSCALL, and allow the system call bpf (SystemCallFilter= of the unit)"

// Missing returns a RefusedError if there is no system call bpf. Errors of the library don't show that: it then
// names something that older kernels lack.
func Missing() error {
	if _, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(noCommand), 0, 0); errno == unix.ENOSYS {
		return &RefusedError{Reason: "the system call bpf is missing (ENOSYS): by a seccomp filter, or in this kernel", Hint: MissingHint, Err: errno}
	}
	return nil
}

const noCommand = 1<<31 - 1

// lacking returns the names of needed capabilities that this thread doesn't have.
func lacking() (names []string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil
	}
	has := uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
	if has&(1<<unix.CAP_SYS_ADMIN) != 0 { // includes both
		return nil
	}
	for _, n := range capabilities {
		if has&(1<<n.bit) == 0 {
			names = append(names, n.name)
		}
	}
	return names
}
