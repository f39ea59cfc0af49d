//go:build linux

package main

import (
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// cpioWriter writes an uncompressed "newc" cpio archive, the format of the kernel's initial root
// file system. It adds parent directories automatically. It writes a name once and drops later
// entries of that name, so that a library that two programs share is stored once. The first write
// error is kept and returned by close.
type cpioWriter struct {
	w    io.Writer
	ino  uint32
	seen map[string]bool
	err  error
}

func newCpioWriter(w io.Writer) *cpioWriter {
	return &cpioWriter{w: w, seen: map[string]bool{"": true}}
}

// has reports whether an entry of that name was written.
func (c *cpioWriter) has(name string) bool { return c.seen[cleanName(name)] }

func (c *cpioWriter) dir(name string, perm uint32) {
	c.entry(cpioFile{name: name, mode: unix.S_IFDIR | perm})
}

func (c *cpioWriter) symlink(name, target string) {
	c.entry(cpioFile{name: name, mode: unix.S_IFLNK | 0o777, size: int64(len(target)), content: strings.NewReader(target)})
}

func (c *cpioWriter) charDevice(name string, perm, major, minor uint32) {
	c.entry(cpioFile{name: name, mode: unix.S_IFCHR | perm, rdev: uint64(major)<<32 | uint64(minor)})
}

func (c *cpioWriter) text(name, content string) {
	c.file(name, 0o644, int64(len(content)), strings.NewReader(content))
}

func (c *cpioWriter) file(name string, perm uint32, size int64, r io.Reader) {
	c.entry(cpioFile{name: name, mode: unix.S_IFREG | perm, size: size, content: r})
}

// close writes the trailer and returns the first error of the whole archive.
func (c *cpioWriter) close() error {
	c.ino = 0
	c.header(cpioFile{name: "TRAILER!!!"})
	return c.err
}

// cpioFile is one file, of any kind.
type cpioFile struct {
	name     string
	mode     uint32 // kind and permissions
	uid, gid int
	rdev     uint64
	size     int64
	content  io.Reader
}

func (c *cpioWriter) entry(e cpioFile) {
	e.name = cleanName(e.name)
	if c.seen[e.name] {
		return
	}
	if parent := path.Dir(e.name); parent != "." {
		c.dir(parent, 0o755)
	}
	c.seen[e.name] = true
	if e.size > 1<<32-1 && c.err == nil {
		c.err = fmt.Errorf("cpio: %s: %d bytes is more than the format's 4 GiB", e.name, e.size)
	}
	c.ino++
	c.header(e)
	if e.content == nil || c.err != nil {
		return
	}
	if n, err := io.CopyN(c.w, e.content, e.size); err != nil {
		c.err = fmt.Errorf("cpio: %s: after %d of %d bytes: %w", e.name, n, e.size, err)
		return
	}
	c.pad(e.size)
}

func (c *cpioWriter) header(e cpioFile) {
	if c.err != nil {
		return
	}
	nlink := 1
	if e.mode&unix.S_IFMT == unix.S_IFDIR {
		nlink = 2
	}
	// magic, ino, mode, uid, gid, nlink, mtime, size, dev (2), rdev (2), name length with its NUL, checksum (unused)
	n, err := fmt.Fprintf(c.w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.ino, e.mode, e.uid, e.gid, nlink, 0, e.size, 0, 0, e.rdev>>32, e.rdev&0xffffffff, len(e.name)+1, 0, e.name)
	c.err = err
	c.pad(int64(n))
}

// pad fills up to the next multiple of four. Headers start on one, so the padding after an n-byte
// part depends only on n.
func (c *cpioWriter) pad(n int64) {
	if rest := n % 4; rest != 0 && c.err == nil {
		_, c.err = c.w.Write(make([]byte, 4-rest))
	}
}

func cleanName(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }
