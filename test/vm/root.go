//go:build linux

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// shipRoot copies a whole root file system from a folder. It comes first: what it has, the other parts
// of the image don't replace.
func (im *image) shipRoot(folder string) error {
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return fmt.Errorf("root: %w (test/debian.sh makes it)", err)
	}
	return filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || name == folder {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		e := cpioFile{name: strings.TrimPrefix(name, folder), mode: st.Mode, uid: int(st.Uid), gid: int(st.Gid)}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			im.cpio.entry(e)
		case unix.S_IFLNK:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			e.size, e.content = int64(len(target)), strings.NewReader(target)
			im.cpio.entry(e)
		case unix.S_IFREG:
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			e.size, e.content = st.Size, f
			im.cpio.entry(e)
		default: // devices: the kernel makes them
		}
		return im.cpio.err
	})
}
