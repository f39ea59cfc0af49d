//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

type cpioEntry struct {
	name string
	mode uint32
	rdev string
	body string
}

// readCpio is the oracle: it reads the format by its description and shares no code with the
// writer.
func readCpio(t *testing.T, b []byte) []cpioEntry {
	t.Helper()
	var entries []cpioEntry
	for off := 0; ; {
		if off%4 != 0 || len(b) < off+110 || string(b[off:off+6]) != "070701" {
			t.Fatalf("no header at %d", off)
		}
		field := func(i int) int {
			n, err := strconv.ParseUint(string(b[off+6+8*i:off+14+8*i]), 16, 32)
			if err != nil {
				t.Fatalf("header at %d, field %d: %v", off, i, err)
			}
			return int(n)
		}
		nameLen, size := field(11), field(6)
		name := string(b[off+110 : off+110+nameLen-1])
		if b[off+110+nameLen-1] != 0 {
			t.Fatalf("%q: name doesn't end with NUL", name)
		}
		e := cpioEntry{name: name, mode: uint32(field(1)), rdev: fmt.Sprintf("%d:%d", field(9), field(10))}
		off = (off + 110 + nameLen + 3) &^ 3
		e.body = string(b[off : off+size])
		off = (off + size + 3) &^ 3
		if name == "TRAILER!!!" {
			return entries
		}
		entries = append(entries, e)
	}
}

func TestCpioRoundTrip(t *testing.T) {
	var b bytes.Buffer
	c := newCpioWriter(&b)
	c.charDevice("/dev/console", 0o600, 5, 1)
	c.dir("/tmp", 0o1777)
	c.text("/a/b/c", "12345")
	c.text("a/b/../b/c", "written twice: dropped")
	c.file("/a/empty", 0o755, 0, strings.NewReader(""))
	c.symlink("/var/run", "/run")
	c.text("/tmp/x", "1234") // /tmp keeps its own mode
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	want := []cpioEntry{
		{"dev", unix.S_IFDIR | 0o755, "0:0", ""},
		{"dev/console", unix.S_IFCHR | 0o600, "5:1", ""},
		{"tmp", unix.S_IFDIR | 0o1777, "0:0", ""},
		{"a", unix.S_IFDIR | 0o755, "0:0", ""},
		{"a/b", unix.S_IFDIR | 0o755, "0:0", ""},
		{"a/b/c", unix.S_IFREG | 0o644, "0:0", "12345"},
		{"a/empty", unix.S_IFREG | 0o755, "0:0", ""},
		{"var", unix.S_IFDIR | 0o755, "0:0", ""},
		{"var/run", unix.S_IFLNK | 0o777, "0:0", "/run"},
		{"tmp/x", unix.S_IFREG | 0o644, "0:0", "1234"},
	}
	got := readCpio(t, b.Bytes())
	if len(got) != len(want) {
		t.Fatalf("got %d entries, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("entry %d: got %v, want %v", i, got[i], want[i])
		}
	}
}

func TestCpioErrors(t *testing.T) {
	full := errors.New("full")
	c := newCpioWriter(failAfter{n: new(int), limit: 3, err: full})
	for i := range 10 {
		c.text(fmt.Sprint("f", i), "x")
	}
	if err := c.close(); !errors.Is(err, full) {
		t.Errorf("got %v, want the writer's error", err)
	}
	c = newCpioWriter(&bytes.Buffer{})
	c.file("/short", 0o644, 10, strings.NewReader("123")) // the file shrank while we read it
	if err := c.close(); err == nil {
		t.Error("no error for a body shorter than announced")
	}
}

type failAfter struct {
	n     *int
	limit int
	err   error
}

func (f failAfter) Write(p []byte) (int, error) {
	if *f.n++; *f.n > f.limit {
		return 0, f.err
	}
	return len(p), nil
}
