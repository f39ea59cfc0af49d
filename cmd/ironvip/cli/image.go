package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unmapImage unmaps the read-only pages of the program's file. The kernel maps a page again at its
// next use, from the page cache.
//
// The program contains the agent with all its sources, and while these initialize, about 24 MB of
// the file are mapped. A process that uses a small part of the program calls this once after its
// start, so that its resident memory is what it uses.
func unmapImage() error {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	image, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	for _, m := range cleanMappings(string(maps), image) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmap pages of %s: %w", image, errno)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// cleanMappings returns the mappings of a file that can't be written and are as in the file, from the
// content of /proc/PID/smaps. Pages that the dynamic linker has changed are anonymous: unmapping them
// would undo the changes.
func cleanMappings(smaps, path string) (out []mapping) {
	var last *mapping // nil: not a mapping to return
	for line := range strings.Lines(smaps) {
		f := strings.Fields(line)
		if len(f) >= 6 && strings.Contains(f[0], "-") { // addresses, permissions, offset, device, inode, path
			last = nil
			start, end, _ := strings.Cut(f[0], "-")
			first, err1 := strconv.ParseUint(start, 16, 64)
			after, err2 := strconv.ParseUint(end, 16, 64)
			if err1 == nil && err2 == nil && strings.HasPrefix(f[1], "r-") && strings.Join(f[5:], " ") == path {
				last = &mapping{uintptr(first), uintptr(after)}
			}
		} else if last != nil && len(f) == 3 && f[0] == "Anonymous:" {
			if f[1] == "0" {
				out = append(out, *last)
			}
			last = nil
		}
	}
	return out
}
