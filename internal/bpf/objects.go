package bpf

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Open returns the link or the map of a descriptor, which stays open; the other one is nil. Both are if it has neither. The
// kernel's description of an object doesn't say which of them it is, so the name of the descriptor decides.
func Open(f *os.File) (link.Link, *ebpf.Map) {
	switch target, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); target {
	case "anon_inode:bpf_link":
		if l, err := duplicated(f.Fd(), link.NewFromFD); err == nil {
			return l, nil
		}
	case "anon_inode:bpf-map":
		if m, err := duplicated(f.Fd(), ebpf.NewMapFromFD); err == nil {
			return nil, m
		}
	}
	return nil, nil
}

// File returns a copy of a descriptor.
func File(fd int, name string) (*os.File, error) {
	return duplicated(uintptr(fd), func(fd int) (*os.File, error) { return os.NewFile(uintptr(fd), name), nil })
}

// duplicated calls a function that takes a descriptor with a copy of one.
func duplicated[T any](fd uintptr, take func(int) (T, error)) (T, error) {
	copied, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		var none T
		return none, os.NewSyscallError("fcntl", err)
	}
	return take(copied)
}
