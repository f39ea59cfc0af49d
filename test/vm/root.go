//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// shipRoot copies a whole root file system from a tar archive. It comes first: what it has, the other
// parts of the image don't replace.
func (im *image) shipRoot(archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("%w (test/vm/debian.sh makes it)", err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
		e := cpioFile{name: h.Name, mode: uint32(h.Mode & 0o7777), uid: h.Uid, gid: h.Gid}
		switch h.Typeflag {
		case tar.TypeReg:
			e.mode |= unix.S_IFREG
			e.size, e.content = h.Size, r
		case tar.TypeDir:
			e.mode |= unix.S_IFDIR
		case tar.TypeSymlink:
			e.mode |= unix.S_IFLNK
			e.size, e.content = int64(len(h.Linkname)), bytes.NewReader([]byte(h.Linkname))
		case tar.TypeLink: // a second name of a file: a symbolic link is as good, and takes no memory
			e.mode = unix.S_IFLNK | 0o777
			target := "/" + cleanName(h.Linkname)
			e.size, e.content = int64(len(target)), bytes.NewReader([]byte(target))
		default: // devices: the kernel makes them
			continue
		}
		if cleanName(e.name) != "" {
			im.cpio.entry(e)
		}
	}
}
