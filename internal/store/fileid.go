package store

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// FileID identifies the open file on the running kernel, by boot, device and inode. It returns ""
// if that isn't known. The file's lock makes the id exclusive: the process that has the file open
// is the only one with this FileID, and an earlier process with the same one has ended. A copy of
// the file has another FileID, also on the same machine.
func (d *DB) FileID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	info, err := d.file.Stat()
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d", strings.TrimSpace(string(boot)), stat.Dev, stat.Ino)
}
