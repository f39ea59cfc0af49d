package process

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/vip"
)

// A process starts the one that replaces it with its listening sockets, and tells it the rest over a connection:
//
//	old: heritage
//	new: ready, once it has every frontend. Clients still go to the old process, or wait.
//	old: goAhead, once it accepts no more clients. It goes on with the open connections for some time.
//
// If the new process fails before it is ready, the old one goes on. If the old one ends, the connection ends, and the new
// one serves.

// heritage is what a process tells the one that replaces it.
type heritage struct {
	Settings  Settings
	Host      hostnet.Snapshot
	Frontends []vip.Frontend
	OnDemand  bool
}

// ready is the answer.
type ready struct{ PID int }

// inheritVariable has the number of descriptors that a process inherits from the one that it replaces. The first ones are
// the connection and the socket for the agent.
const inheritVariable = "IRONVIP_PROXY_INHERITS"

const (
	firstInherited = 3
	readyTime      = 30 * time.Second // for a process to become ready
)

// replace starts the program that has this one's name, and returns once it serves.
func (s *Server) replace(ctx context.Context, l net.Listener) error {
	done, err := s.turn(ctx)
	if err != nil {
		return err
	}
	defer done()
	h, err := s.heritage(ctx)
	if err != nil {
		return err
	}
	near, far, err := connection()
	if err != nil {
		return err
	}
	err = s.start(ctx, l, far)
	far.Close()
	var r ready
	if err == nil {
		err = handOver(ctx, near, h, &r)
	}
	if err != nil {
		near.Close() // which ends the new process
		return err
	}
	notify(fmt.Sprintf("MAINPID=%d", r.PID))
	if t := s.Target(); t != nil {
		t.Leave()
	}
	s.o.Log.Info("replaced", "pid", r.PID)
	// The end of the connection says the same, and later that this process has ended.
	_, _ = near.Write([]byte{goAhead})
	return nil
}

// goAhead says that the old process accepts no more clients.
const goAhead = 1

// handOver tells the new process everything, and waits until it is ready.
func handOver(ctx context.Context, near net.Conn, h heritage, r *ready) error {
	_ = near.SetDeadline(time.Now().Add(readyTime))
	defer context.AfterFunc(ctx, func() { _ = near.SetDeadline(time.Unix(1, 0)) })()
	if err := gob.NewEncoder(near).Encode(h); err != nil {
		return fmt.Errorf("tell the new process: %w", err)
	}
	if err := gob.NewDecoder(near).Decode(r); err != nil {
		return fmt.Errorf("await the new process: %w", err)
	}
	_ = near.SetDeadline(time.Time{})
	return ctx.Err()
}

func (s *Server) heritage(ctx context.Context) (heritage, error) {
	s.mu.Lock()
	h := heritage{Settings: s.settings, OnDemand: s.onDemand}
	t := s.target
	s.mu.Unlock()
	if row := s.host.Row(struct{}{}); row != nil {
		h.Host = row.Value
	}
	if t == nil {
		return h, nil
	}
	for o, err := range t.Actual(ctx) {
		if err != nil {
			return h, err
		}
		if len(o.Damage) == 0 { // otherwise the agent repairs it in the new process
			h.Frontends = append(h.Frontends, o.Value)
		}
	}
	return h, nil
}

// connection returns both ends of a connection.
func connection() (near net.Conn, far *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	file := os.NewFile(uintptr(ends[0]), "new process")
	defer file.Close() // FileConn makes a copy
	far = os.NewFile(uintptr(ends[1]), "old process")
	if near, err = net.FileConn(file); err != nil {
		far.Close()
	}
	return near, far, err
}

// start starts the new process. A shell does that in the background and ends, so that the new process is no child of this
// one: systemd must see its end.
func (s *Server) start(ctx context.Context, l net.Listener, far *os.File) error {
	own, err := sockets.File(l.(*net.UnixListener))
	if err != nil {
		return err
	}
	defer own.Close()
	files, err := s.o.Sockets.Files()
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	program, err := exec.LookPath(os.Args[0])
	if err != nil {
		return err
	}
	args := append([]string{"-c", `"$@" &`, "sh", program}, os.Args[1:]...)
	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = append([]*os.File{far, own}, files...)
	// systemd expects its watchdog from this process; the new one gets it with MAINPID.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WATCHDOG_PID=") })
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", inheritVariable, len(cmd.ExtraFiles)))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	return nil
}

// succeed begins with what another process has left to this one. Without one, it returns nil.
func succeed(ctx context.Context, o MainOptions, log *slog.Logger) (s *Server, l net.Listener, err error) {
	count, set := os.LookupEnv(inheritVariable)
	os.Unsetenv(inheritVariable)
	if !set {
		return nil, nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 2 {
		return nil, nil, fmt.Errorf("%s=%s is not a number of descriptors", inheritVariable, count)
	}
	fds := make([]int, 0, n)
	for i := range n {
		unix.CloseOnExec(firstInherited + i)
		fds = append(fds, firstInherited+i)
	}
	old := os.NewFile(uintptr(fds[0]), "old process")
	own := os.NewFile(uintptr(fds[1]), "socket for the agent")
	defer own.Close()
	if l, err = net.FileListener(own); err != nil {
		old.Close()
		return nil, nil, err
	}
	inherited := loop.NewSockets()
	for _, err := range inherited.Inherit(fds[2:]) {
		log.Warn("inherited socket not used", "err", err)
	}
	s = New(Options{Version: o.Version, Sockets: inherited, Log: log})
	if err := s.succeed(ctx, old); err != nil {
		old.Close()
		return nil, nil, errors.Join(fmt.Errorf("replace the process: %w", err), s.Close())
	}
	return s, l, nil
}

// succeed makes the frontends of the old process, and returns once this one serves. It has them all, or fails.
func (s *Server) succeed(ctx context.Context, old *os.File) error {
	var h heritage
	if err := gob.NewDecoder(old).Decode(&h); err != nil {
		return err
	}
	s.host.Set(h.Host)
	s.mu.Lock()
	s.settings, s.onDemand = h.Settings, h.OnDemand
	s.target = s.newTarget(true)
	t := s.target
	s.mu.Unlock()
	updates := make([]reconcile.Update[vip.FrontendKey, vip.Frontend], len(h.Frontends))
	for i := range h.Frontends {
		updates[i] = reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: h.Frontends[i].Key, New: &h.Frontends[i]}
	}
	if err := t.Apply(ctx, updates); err != nil {
		return err
	}
	for _, u := range updates {
		if u.Err != nil {
			return fmt.Errorf("frontend %s: %w", u.Key, u.Err)
		}
	}
	if err := gob.NewEncoder(old).Encode(ready{os.Getpid()}); err != nil {
		return err
	}
	if n, err := old.Read(make([]byte, 1)); n == 0 && !errors.Is(err, io.EOF) {
		return err
	}
	t.Settle()
	s.o.Sockets.RemoveUnclaimed()
	s.former.Store(true)
	go func() { // until the old process has ended
		_, _ = io.Copy(io.Discard, old)
		old.Close()
		s.former.Store(false)
	}()
	return nil
}

// drainTime bounds how long a process that was replaced goes on with its connections.
const drainTime = 10 * time.Minute

// drainReplaced waits until the connections of this process have ended, or for drainTime or ctx.
func (s *Server) drainReplaced(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	log.Info("going on with the open connections", "within", drainTime)
	s.Drain(ctx)
	drained := make(chan struct{})
	go func() { s.draining.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-ctx.Done():
	}
}
