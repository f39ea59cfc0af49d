package logwriter

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

func text(w io.Writer) slog.Handler {
	return slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
}

// streams returns the two ends of what stderr may be.
func streams(t *testing.T, kind string) (reader, writer *os.File) {
	t.Helper()
	var err error
	if kind == "pipe" {
		reader, writer, err = os.Pipe()
	} else {
		var fds [2]int
		fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		reader, writer = os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "writer")
	}
	must.Succeed(t, err)
	t.Cleanup(func() { reader.Close(); writer.Close() })
	return reader, writer
}

// Nothing waits for a reader that stalls. When it goes on, it gets whole lines in order, and the number
// of those that are missing.
func TestAStalledReader(t *testing.T) {
	for _, kind := range []string{"pipe", "socket"} {
		t.Run(kind, func(t *testing.T) {
			reader, writer := streams(t, kind)
			w := New(writer)
			log := w.Logger(text)
			const lines = 30_000 // 3 MB
			for n := range lines {
				log.Info(strings.Repeat("x", 80), "n", n)
			}
			must.False(t, w.Flush(time.Millisecond), "all lines are written, but nobody reads")
			all := bufio.NewScanner(reader)
			n, missing := 0, 0
			for missing == 0 && all.Scan() {
				if text := all.Text(); strings.Contains(text, "log lines dropped") {
					_, err := fmt.Sscanf(text[strings.Index(text, "lines="):], "lines=%d", &missing)
					must.Succeed(t, err, text)
				} else if want := fmt.Sprintf("level=INFO msg=%s n=%d", strings.Repeat("x", 80), n); text != want {
					t.Fatalf("line %d: %q", n, text)
				} else {
					n++
				}
			}
			if n+missing != lines || missing == 0 || n < 10_000 {
				t.Errorf("%d lines and %d missing", n, missing)
			}
			expect.True(t, w.Flush(10*time.Second), "lines still wait")
			log.Info("again")
			if !all.Scan() || all.Text() != "level=INFO msg=again" {
				t.Errorf("afterwards: %q", all.Text())
			}
		})
	}
}

// A crash loses no line that the file has accepted.
func TestACrashLosesNothing(t *testing.T) {
	if os.Getenv("IRONVIP_TEST_CRASH") != "" {
		New(os.Stderr).Logger(text).Info("the last line")
		os.Exit(3)
	}
	for range 20 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestACrashLosesNothing$")
		cmd.Env = append(os.Environ(), "IRONVIP_TEST_CRASH=1")
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 3 || !strings.Contains(string(out), "the last line") {
			t.Fatalf("exit code %d, output %q", cmd.ProcessState.ExitCode(), out)
		}
	}
}

// A regular file keeps what it has, and a reader that has gone ends nothing.
func TestOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	must.Succeed(t, os.WriteFile(path, []byte("before\n"), 0o600))
	file := must.Get(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer file.Close()
	must.Get(file.Seek(0, io.SeekEnd))(t)
	New(file).Logger(text).Info("after")
	if got, err := os.ReadFile(path); err != nil || string(got) != "before\nlevel=INFO msg=after\n" {
		t.Errorf("%q, %v", got, err)
	}
	for _, kind := range []string{"pipe", "socket"} {
		reader, writer := streams(t, kind)
		reader.Close()
		w := New(writer)
		w.Logger(text).Info("nobody reads this")
		if !w.Flush(10 * time.Second) {
			t.Error(kind, "waits for nobody")
		}
	}
}

// Without a descriptor that doesn't wait, the goroutine writes all lines.
func TestWithoutAnotherDescriptor(t *testing.T) {
	reader, writer := streams(t, "pipe")
	w := New(writer)
	unix.Close(w.fd)
	w.fd, w.waits = int(writer.Fd()), true
	log := w.Logger(text)
	for n := range 10_000 {
		log.Info("line", "n", n)
	}
	all := bufio.NewScanner(reader)
	for n := range 10_000 {
		if !all.Scan() || all.Text() != fmt.Sprintf("level=INFO msg=line n=%d", n) {
			t.Fatalf("line %d: %q", n, all.Text())
		}
	}
	wait.Until(t, "nothing waits", func() bool { return w.Flush(0) })
}
