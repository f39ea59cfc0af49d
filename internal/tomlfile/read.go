// Package tomlfile reads one TOML file for the packages that define what is in it.
//
// In go a path and a size limit; out come the file's tree, the line of each of its keys, and a
// Checker that collects problems with their lines. Reading is bounded: a FIFO, a device or a
// file over the limit is refused and never waited for. The package knows no setting by name.
package tomlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/ironvip/ironvip/vip"
)

// ReadFile reads a regular file of at most limit bytes. Whatever path is (a
// FIFO, a device, a file that grows), it neither waits nor reads on. The
// problem, if any, has the path as its place.
func ReadFile(path string, limit int) ([]byte, *vip.Problem) {
	bad := func(code, hint, format string, args ...any) ([]byte, *vip.Problem) {
		return nil, &vip.Problem{Code: code, Place: path, Message: fmt.Sprintf(format, args...), Hint: hint}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return bad(vip.CodeInvalid, openHint(path, err), "%s", Cause(err))
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return bad(vip.CodeInvalid, "", "%s", Cause(err))
	case !info.Mode().IsRegular():
		return bad(vip.CodeInvalid, "move it elsewhere: only regular files are read", "is %s, not a file", kind(info.Mode()))
	case info.Size() > int64(limit):
		return bad(vip.CodeInvalid, "split it", "has %d bytes, more than the %s that are read", info.Size(), mebibytes(limit))
	}
	var data bytes.Buffer
	data.Grow(int(info.Size()) + bytes.MinRead) // the size and the end of the file in one allocation
	if _, err := data.ReadFrom(io.LimitReader(f, int64(limit)+1)); err != nil {
		return bad(vip.CodeInvalid, "", "read: %s", Cause(err))
	}
	if data.Len() > limit {
		return bad(vip.CodeInvalid, "split it", "has more than the %s that are read", mebibytes(limit))
	}
	return data.Bytes(), nil
}

// openHint is the remedy for a file that can't be opened.
func openHint(path string, err error) string {
	if target, linkErr := os.Readlink(path); linkErr == nil && errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("it is a link to %s, which is not there: repair or remove the link", target)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "let the user that ironvip runs as read it"
	case errors.Is(err, syscall.ENXIO):
		return "move it elsewhere: only regular files are read"
	}
	return ""
}

// Cause returns the error within an error of package os, without the call and the path.
func Cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "no regular file"
}

func mebibytes(n int) string { return fmt.Sprintf("%d MiB", n>>20) }
