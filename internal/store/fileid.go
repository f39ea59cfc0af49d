package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/ironvip/ironvip/vip"
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

// displaced returns an error if the path no longer names the open file, because somebody has deleted
// or replaced the file or its directory. The data of the open file then ends with this process. It
// costs one stat. A path that can't be looked up for another reason says nothing about the file.
func (d *DB) displaced() error {
	now, err := os.Stat(d.path)
	what := "replaced by another file"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		what = "deleted"
	case err != nil || os.SameFile(d.opened, now):
		return nil
	}
	return &Error{Err: fmt.Errorf("%w: %w", ErrUnavailable, ErrDisplaced), Problem: vip.Problem{
		Code: vip.CodeStore, Place: d.path, Message: "write state: the file was " + what + " while in use",
		Hint: "move the file back; or keep what this agent knows: ironvip snapshot save vips.json, stop the agent, ironvip snapshot restore vips.json, start it",
	}}
}
