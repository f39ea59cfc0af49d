package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/ironvip/ironvip/vip"
)

// Bounds on what is read.
const (
	MaxConfigSize   = 1 << 20 // bytes of ironvip.toml
	MaxServicesSize = 4 << 20 // bytes of one file of services
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
		return bad(vip.CodeInvalid, openHint(path, err), "%s", cause(err))
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return bad(vip.CodeInvalid, "", "%s", cause(err))
	case !info.Mode().IsRegular():
		return bad(vip.CodeInvalid, "move it elsewhere: only regular files are read", "is %s, not a file", kind(info.Mode()))
	case info.Size() > int64(limit):
		return bad(vip.CodeInvalid, "split it", "has %d bytes, more than the %s that are read", info.Size(), mebibytes(limit))
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return bad(vip.CodeInvalid, "", "read: %s", cause(err))
	}
	if len(data) > limit {
		return bad(vip.CodeInvalid, "split it", "has more than the %s that are read", mebibytes(limit))
	}
	return data, nil
}

// openHint is the remedy for a file that can't be opened.
func openHint(path string, err error) string {
	if target, linkErr := os.Readlink(path); linkErr == nil && errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("it is a link to %s, which is not there: mend or remove the link", target)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "let the user that ironvip runs as read it"
	case errors.Is(err, syscall.ENXIO):
		return "move it elsewhere: only regular files are read"
	}
	return ""
}

// cause is an error without the call and path that os puts around it.
func cause(err error) error {
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

// parse reads a TOML document into a tree, and where its parts are. With a
// problem, the document says nothing.
func parse(path string, data []byte) (map[string]any, positions, *vip.Problem) {
	if line := notUTF8(data); line > 0 { // the reader would take a UTF-16 mark for nothing
		return nil, positions{}, &vip.Problem{Code: vip.CodeInvalid, Place: lineOf(path, line), Message: "not UTF-8 text",
			Hint: "save the file as UTF-8"}
	}
	at, err := scan(data)
	if deep, ok := errors.AsType[depthError](err); ok {
		return nil, at, &vip.Problem{Code: vip.CodeInvalid, Place: lineOf(path, deep.line), Message: deep.Error(), Hint: "nest less deep"}
	}
	tree := map[string]any{}
	if _, err := toml.Decode(string(data), &tree); err != nil {
		p := vip.Problem{Code: vip.CodeInvalid, Place: path, Message: "not valid TOML: " + strings.TrimPrefix(err.Error(), "toml: ")}
		if pe, ok := errors.AsType[toml.ParseError](err); ok {
			p.Place = lineOf(path, max(1, pe.Position.Line))
			p.Message = "not valid TOML: " + pe.Message
			if pe.LastKey != "" && len(pe.LastKey) < 64 {
				p.Message += fmt.Sprintf(" (after key %q)", pe.LastKey)
			}
			if pe.Usage != "" {
				p.Hint = strings.Join(strings.Fields(firstSentence(pe.Usage)), " ")
			}
		}
		return nil, at, &p
	}
	return tree, at, nil
}

// notUTF8 returns the first line that is not UTF-8, or 0.
func notUTF8(data []byte) int {
	for rest, at := data, 0; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			return 1 + bytes.Count(data[:at], []byte("\n"))
		}
		rest, at = rest[n:], at+n
	}
	return 0
}

// firstSentence cuts a lengthy explanation to what fits a hint.
func firstSentence(s string) string {
	if i := strings.Index(s, ". "); i >= 0 {
		return s[:i]
	}
	return strings.TrimSuffix(strings.SplitN(strings.TrimSpace(s), "\n\n", 2)[0], ".")
}

func lineOf(path string, line int) string { return path + ":" + strconv.Itoa(line) }

// SortProblems orders problems by place: by file, then by line. Those of one
// place keep their order.
func SortProblems(problems []vip.Problem) {
	slices.SortStableFunc(problems, func(a, b vip.Problem) int {
		fileA, lineA := splitPlace(a.Place)
		fileB, lineB := splitPlace(b.Place)
		if c := strings.Compare(fileA, fileB); c != 0 {
			return c
		}
		return lineA - lineB
	})
}

func splitPlace(place string) (file string, line int) {
	if i := strings.LastIndexByte(place, ':'); i >= 0 {
		if n, err := strconv.Atoi(place[i+1:]); err == nil {
			return place[:i], n
		}
	}
	return place, 0
}
