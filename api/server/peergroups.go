package server

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGroups is the most groups that a process can have (NGROUPS_MAX of Linux).
const maxGroups = 65536

// peerGroups returns the supplementary groups of the process that connected to a unix socket, nil if
// the kernel doesn't tell.
func peerGroups(fd int) []uint32 {
	groups := make([]uint32, 32)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4]
		case errno != unix.ERANGE || len(groups) >= maxGroups:
			return nil
		}
		groups = make([]uint32, maxGroups)
	}
}
