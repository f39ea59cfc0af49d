package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/sockopt"
)

// ErrSilent means that a client of the socket sent no request. Something only tried whether anyone
// listens.
var ErrSilent = errors.New("no request")

// Request is another process that asks to take over, as the running agent sees it. The caller closes
// it.
type Request struct {
	PID int // of the other process
	*conversation
	unix    *net.UnixConn
	process Process
}

// ReadRequest reads the request of a client of the socket. With an error, the connection is closed.
func ReadRequest(conn *net.UnixConn) (*Request, error) {
	_ = conn.SetReadDeadline(time.Now().Add(helloTime))
	line, err := receiveLine(conn)
	switch {
	case len(line) == 0 && errors.Is(err, io.EOF):
		err = ErrSilent
	case err == nil && string(line) != hello:
		err = fmt.Errorf("unknown request %q", line)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	r := &Request{conversation: converse(conn), unix: conn}
	cred, err := sockopt.PeerOf(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	r.PID = int(cred.Pid)
	r.process = OpenProcess(r.PID)
	return r, nil
}

// Refuse answers a request and ends the conversation.
func (r *Request) Refuse(why string) {
	_ = r.send(message{Refused: why})
	r.Close()
}

// Close ends the conversation.
func (r *Request) Close() {
	r.conn.Close()
	r.process.Close()
}

// Give sends the listening sockets, which stay in set. The error is a *NotReadyError.
func (r *Request) Give(set *sockets.Set) error {
	if err := r.give(set); err != nil {
		return &NotReadyError{fmt.Sprintf("it does not take the listening sockets: %v", err), errors.Is(err, os.ErrDeadlineExceeded)}
	}
	return nil
}

func (r *Request) give(set *sockets.Set) error {
	if err := r.send(message{Sockets: true}); err != nil {
		return err
	}
	_ = r.conn.SetWriteDeadline(time.Now().Add(writeTime))
	if err := set.Send(r.unix); err != nil {
		return err
	}
	return r.send(message{Start: true})
}

// NotReadyError means that the new process did not become ready. If it hangs, it may still hold
// listening sockets and the state file.
type NotReadyError struct {
	Why   string
	Hangs bool
}

func (e *NotReadyError) Error() string { return e.Why }

// AwaitReady returns when the new process serves everything. The error is a *NotReadyError, or that of
// ctx.
func (r *Request) AwaitReady(ctx context.Context) error {
	// The loop looks at ctx at each sign of life, so the end of ctx needn't interrupt it.
	limit := time.Now().Add(readyTime)
	var last time.Time // set: a last look, because this process may have been suspended meanwhile
	for ctx.Err() == nil {
		deadline := last
		if last.IsZero() {
			deadline = earlier(limit, time.Now().Add(silence))
		}
		m, err := r.receive(deadline)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && last.IsZero():
			last = time.Now().Add(silence / 10)
			continue
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(limit):
			return &NotReadyError{fmt.Sprintf("it hangs: no sign of life for %s", silence), true}
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &NotReadyError{fmt.Sprintf("it was not ready within %s", readyTime), true}
		case errors.Is(err, io.EOF):
			return &NotReadyError{"it ended before it was ready", false}
		case err != nil:
			return &NotReadyError{err.Error(), false}
		case m.Ready:
			return nil
		}
		if time.Now().Before(limit) {
			last = time.Time{}
		}
	}
	return ctx.Err()
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Resume reports that this process goes on, and returns when the other one can't do harm any more:
// it serves no clients, and has released the state directory. One that hangs is killed.
func (r *Request) Resume(ctx context.Context, why *NotReadyError) error {
	_ = r.send(message{Resumed: why.Why})
	r.conn.Close()
	if !why.Hangs {
		return nil
	}
	return r.process.end(ctx, endTime)
}

// Bye reports that this process accepts no more clients.
func (r *Request) Bye(f Farewell) error {
	return r.send(message{Bye: &f})
}
