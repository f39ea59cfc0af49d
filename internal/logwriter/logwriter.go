// Package logwriter writes log lines to a file, pipe, terminal or socket without waiting for it. A reader
// that stalls, such as systemd's journal on a full disk, must not stop a goroutine that logs.
package logwriter

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// room is how many bytes of lines wait for the file at most.
const room = 1 << 20

// Writer passes lines on to a file. While the file accepts them, each line is written before Write
// returns, so a crash loses none. Otherwise they wait, up to 1 MiB, and a goroutine writes them. Lines
// that don't fit are dropped and counted, until the goroutine has written those before. Then it writes a
// line with the count. Its methods may be called concurrently.
type Writer struct {
	file   *os.File // keeps fd open
	fd     int
	socket bool // fd is a socket
	waits  bool // a write to fd waits until the file accepts it, so only the goroutine writes

	mu      sync.Mutex
	reports *slog.Logger  // writes to the file, and waits for it
	waiting []byte        // whole lines, except for the rest of the first one
	dropped uint64        // lines, after those that wait
	busy    chan struct{} // closed when nothing waits any more; nil: nothing waits
}

// New returns a Writer for a file, which stays open for as long as the process runs. The flags of the
// file stay as they are, because other processes have it open, too: a pipe or terminal is opened again
// for writes that don't wait. A regular file needs no reader, so a write to it may wait for the disk.
func New(file *os.File) *Writer {
	w := &Writer{file: file, fd: int(file.Fd()), waits: true}
	var s unix.Stat_t
	if unix.Fstat(w.fd, &s) != nil {
		return w
	}
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		w.socket, w.waits = true, false
	case unix.S_IFREG:
		w.waits = false
	default:
		again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(w.fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err == nil {
			w.fd, w.waits = again, false
		}
	}
	return w
}

// Logger returns a logger with a handler that writes to w. The handler must pass one whole line to each
// Write. The same kind of handler formats the line with the number of dropped lines, so all loggers of a
// Writer should have one format.
func (w *Writer) Logger(handler func(io.Writer) slog.Handler) *slog.Logger {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = slog.New(handler(patient{w}))
	return slog.New(handler(w))
}

// Write implements io.Writer. It always succeeds.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := line
	if w.busy == nil && !w.waits {
		if rest = line[w.try(line):]; len(rest) == 0 {
			return len(line), nil
		}
	}
	if w.dropped > 0 || len(w.waiting)+len(rest) > room {
		w.dropped++
		return len(line), nil
	}
	w.waiting = append(w.waiting, rest...)
	if w.busy == nil {
		w.busy = make(chan struct{})
		go w.drain()
	}
	return len(line), nil
}

// try writes as much of a line as the file accepts now, and returns its length. A part that the file
// will never accept counts as written.
func (w *Writer) try(line []byte) (n int) {
	for n < len(line) {
		more, err := w.write(line[n:])
		switch err { //nolint:errorlint // an errno
		case nil:
			n += more
		case unix.EINTR:
		case unix.EAGAIN:
			return n
		default:
			return len(line)
		}
	}
	return n
}

func (w *Writer) write(line []byte) (int, error) {
	if w.socket {
		return unix.SendmsgN(w.fd, line, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	return unix.Write(w.fd, line)
}

// patient writes to the file and waits for it.
type patient struct{ w *Writer }

func (p patient) Write(line []byte) (int, error) {
	for n := 0; ; {
		if n += p.w.try(line[n:]); n == len(line) {
			return n, nil
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(p.w.fd), Events: unix.POLLOUT}}, -1)
	}
}

// drain writes the lines that wait, and waits for the file.
func (w *Writer) drain() {
	for {
		w.mu.Lock()
		lines, dropped, reports := w.waiting, w.dropped, w.reports
		if len(lines) == 0 && dropped == 0 {
			close(w.busy)
			w.busy = nil
			w.mu.Unlock()
			return
		}
		w.waiting, w.dropped = nil, 0
		w.mu.Unlock()
		for line := range bytes.Lines(lines) { // one by one, because other processes may write to the file, too
			_, _ = patient{w}.Write(line)
		}
		if dropped > 0 && reports != nil {
			reports.Warn("log lines dropped: stderr did not accept them in time", "lines", dropped)
		}
	}
}

// Flush waits until no line waits for the file, for at most the given time. It returns whether none does.
func (w *Writer) Flush(most time.Duration) bool {
	w.mu.Lock()
	busy := w.busy
	w.mu.Unlock()
	if busy == nil {
		return true
	}
	timeout := time.NewTimer(most)
	defer timeout.Stop()
	select {
	case <-busy:
		return true
	case <-timeout.C:
		return false
	}
}

// HandlerOptions returns options of a handler for stderr: without times if systemd adds them.
func HandlerOptions(level slog.Leveler) *slog.HandlerOptions {
	o := &slog.HandlerOptions{Level: level}
	if os.Getenv("JOURNAL_STREAM") != "" {
		o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	return o
}

// MostFlush is how long a process waits at its end until stderr has accepted the last lines.
const MostFlush = 2 * time.Second

// OfProcess returns a log to stderr, and what the process calls at its end.
func OfProcess() (log *slog.Logger, flush func()) {
	w := New(os.Stderr)
	log = w.Logger(func(out io.Writer) slog.Handler { return slog.NewTextHandler(out, HandlerOptions(nil)) })
	return log, func() { w.Flush(MostFlush) }
}
