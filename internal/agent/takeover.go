package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/sockets"
)

// A new process takes over from a running agent on a unix socket in the state directory:
//
//	new: "takeover 1\n"
//	old: stops everything but its dataplane, releases the state file, sends its listening sockets
//	new: starts, adopts the sockets, and sends 'r' when it serves everything
//	old: sends 'b', accepts no more clients, and ends with its last connection
//
// If the connection ends before 'r', the old process starts its other parts again.
const (
	takeoverSocket = "takeover.sock"
	takeoverHello  = "takeover 1\n"
	takeoverReady  = 'r'
	takeoverBye    = 'b'

	helloTime = 2 * time.Second  // for a request
	stopTime  = time.Minute      // for the old process to stop its parts
	byeTime   = 10 * time.Second // for its last answer
)

func takeoverPath(cfg *configs.Config) string {
	return filepath.Join(cfg.Node.StateDir, takeoverSocket)
}

// predecessor is what serves clients until an agent is ready: another process, or a dataplane of
// this process.
type predecessor interface {
	// retire makes the predecessor accept no more clients.
	retire()
	// close tells it that this agent has ended or doesn't start, if it has not retired.
	close()
}

// inheritance is what an agent begins with.
type inheritance struct {
	sockets     *sockets.Set
	problems    []error     // of inherited descriptors
	predecessor predecessor // nil: none
}

// request is another process that wants to take over. As an error, it is the reason why the parts
// of the agent end.
type request struct {
	conn *net.UnixConn
	pid  int
	next *sockets.Set // copies of the listening sockets
}

func (r *request) Error() string { return fmt.Sprintf("process %d takes over", r.pid) }

// awaitTakeover returns a request to take over, or the end of ctx. It costs nothing if the socket
// can't be opened, except that no process can take over.
func (a *agent) awaitTakeover(ctx context.Context) error {
	path := takeoverPath(a.config.startedWith())
	l, err := server.ListenUnix(path, 0o600)
	if err != nil {
		a.log.Warn("no other agent can take over from this one", "err", err)
		<-ctx.Done()
		return ctx.Err()
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				a.log.Warn("no other agent can take over from this one any more", "err", err)
				<-ctx.Done()
			}
			return ctx.Err()
		}
		r, err := readRequest(conn.(*net.UnixConn))
		if err == nil {
			if r.next, err = a.sockets.Next(); err == nil {
				return r
			}
		}
		a.log.Warn("request to take over refused", "err", err)
		conn.Close()
	}
}

func readRequest(conn *net.UnixConn) (*request, error) {
	_ = conn.SetReadDeadline(time.Now().Add(helloTime))
	hello := make([]byte, len(takeoverHello))
	if _, err := conn.Read(hello); err != nil {
		return nil, err
	}
	if string(hello) != takeoverHello {
		return nil, fmt.Errorf("unknown request %q", hello)
	}
	r := &request{conn: conn}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	err = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			r.pid = int(cred.Pid)
		}
	})
	return r, err
}

// handOver gives the listening sockets and the state file to another process, and returns when the
// last connection has ended. If the other process doesn't become ready, it returns what this
// process's next agent begins with.
func (a *agent) handOver(ctx context.Context, r *request) (*inheritance, error) {
	defer r.conn.Close()
	a.log.Info("handing over", "pid", r.pid)
	err := a.closeStores()
	if err == nil {
		err = r.next.Send(r.conn)
	}
	if err == nil {
		err = a.awaitReady(ctx, r)
	}
	switch {
	case ctx.Err() != nil:
		r.next.Close()
		return nil, a.plane.Close()
	case err != nil:
		a.log.Error("the other agent did not take over; this one goes on", "pid", r.pid, "err", err)
		return &inheritance{sockets: r.next, predecessor: newFormerPlane(ctx, a)}, nil
	}
	a.systemd.mainPID(r.pid)
	_, _ = r.conn.Write([]byte{takeoverBye})
	r.next.Close()
	a.log.Info("handed over", "pid", r.pid, "connections_end_within", a.hardStopAfter())
	a.drain(ctx, a.hardStopAfter())
	return nil, a.plane.Close()
}

// awaitReady returns when the other process is ready. The watchdog is for this process until then,
// and its dataplane works.
func (a *agent) awaitReady(ctx context.Context, r *request) error {
	watched, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { a.systemd.watch(watched, time.Now) })
	defer watch.Wait()
	defer stop()
	return r.await(ctx)
}

// await returns when the other process is ready.
func (r *request) await(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = r.conn.SetReadDeadline(time.Unix(1, 0)) })()
	_ = r.conn.SetReadDeadline(time.Time{})
	var b [1]byte
	switch n, err := r.conn.Read(b[:]); {
	case ctx.Err() != nil:
		return ctx.Err()
	case n == 0:
		return errors.Join(errors.New("it ended before it was ready"), err)
	case b[0] != takeoverReady:
		return fmt.Errorf("unknown message %q", b[0])
	}
	return nil
}

func (a *agent) hardStopAfter() time.Duration {
	return time.Duration(a.config.get().Dataplane.HardStopAfter)
}

// drain waits for the end of the open connections, for at most the given time.
func (a *agent) drain(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	a.plane.drain(ctx)
}

// formerPlane is the dataplane of an agent of this process that could not hand over.
type formerPlane struct {
	*agent
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

func newFormerPlane(ctx context.Context, a *agent) *formerPlane {
	f := &formerPlane{agent: a}
	f.ctx, f.cancel = context.WithCancel(ctx)
	return f
}

func (f *formerPlane) retire() {
	f.work.Go(func() {
		f.drain(f.ctx, f.hardStopAfter())
		_ = f.plane.Close()
	})
}

func (f *formerPlane) close() {
	f.cancel()
	f.work.Wait()
	_ = f.plane.Close()
}

// elder is a process from which this one takes over.
type elder struct {
	conn *net.UnixConn
	log  *slog.Logger
}

// takeOver adds the listening sockets of the agent that has the state directory to set. It returns
// nil if there is no agent. The other agent has released the state directory then.
func takeOver(ctx context.Context, cfg *configs.Config, set *sockets.Set, log *slog.Logger) (predecessor, error) {
	path := takeoverPath(cfg)
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		log.Info("no agent to take over from", "socket", path)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("take over: %w", err)
	}
	e := &elder{conn.(*net.UnixConn), log}
	defer context.AfterFunc(ctx, e.close)()
	_ = conn.SetDeadline(time.Now().Add(stopTime))
	if _, err := conn.Write([]byte(takeoverHello)); err != nil {
		e.close()
		return nil, fmt.Errorf("take over: %w", err)
	}
	problems, err := set.Receive(e.conn)
	logInherited(log, problems)
	if err != nil {
		e.close()
		return nil, fmt.Errorf("take over: %w\nhint: the log of the running agent has more", err)
	}
	_ = conn.SetDeadline(time.Time{})
	log.Info("taking over", "sockets", set.Unclaimed())
	return e, nil
}

func (e *elder) retire() {
	defer e.conn.Close()
	_ = e.conn.SetDeadline(time.Now().Add(byeTime))
	var bye [1]byte
	if _, err := e.conn.Write([]byte{takeoverReady}); err != nil {
		e.log.Warn("the replaced agent has ended before", "err", err)
	} else if _, err := e.conn.Read(bye[:]); err != nil || bye[0] != takeoverBye {
		e.log.Warn("the replaced agent does not answer", "err", err)
	}
}

func (e *elder) close() { e.conn.Close() }

func logInherited(log *slog.Logger, problems []error) {
	for _, err := range problems {
		log.Warn("inherited socket not used", "err", err)
	}
}
