// Package deviceuse finds other agents that use the same network device: each of them undoes what the others change.
//
// An agent that uses a device listens on an abstract unix socket with the device's name. Abstract sockets belong to a
// network namespace, as devices do, and the kernel closes them with the process. The agent that finds the socket in use
// connects to it. Such a connection says nothing: each end sees the other one's process, until that ends.
package deviceuse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/sockopt"
)

// mostOthers bounds the connections that are accepted. More of them wait in the kernel.
const mostOthers = 8

// Use is the use of one device. Create it with New and start Run.
type Use struct {
	device string
	events *event.Log
	log    *slog.Logger

	mu     sync.Mutex
	others []Other
}

// Other is another agent that uses the device.
type Other struct {
	PID   int // 0: not in the PID namespace of this process
	Since time.Time
}

// String returns the agent in words.
func (o Other) String() string {
	if o.PID == 0 {
		return "an agent in another PID namespace"
	}
	return fmt.Sprintf("the agent of process %d", o.PID)
}

// New returns the use of a device.
func New(device string, events *event.Log, log *slog.Logger) *Use {
	return &Use{device: device, events: events, log: log}
}

// Others returns the other agents, ordered by process.
func (u *Use) Others() []Other {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := slices.Clone(u.others)
	slices.SortFunc(out, func(a, b Other) int { return cmp.Or(cmp.Compare(a.PID, b.PID), a.Since.Compare(b.Since)) })
	return out
}

// address is the name of the socket of a device.
func address(device string) *net.UnixAddr {
	return &net.UnixAddr{Name: "@ironvip/dataplane/" + device, Net: "unix"}
}

// Run finds other agents until ctx ends. It never fails: without the socket, the agent only misses the others.
func (u *Use) Run(ctx context.Context) {
	pause := backoff.Backoff{Lo: 100 * time.Millisecond, Hi: 10 * time.Second}
	for ctx.Err() == nil {
		l, err := net.ListenUnix("unix", address(u.device))
		switch {
		case err == nil:
			u.accept(ctx, l)
			return
		case !errors.Is(err, unix.EADDRINUSE):
			u.log.Warn("other agents with the same device are not found", "device", u.device, "err", err)
			return
		}
		// It may have ended by now, or be about to listen. While it ends, it has the name for a moment longer than the
		// connection.
		if c, err := net.DialUnix("unix", nil, address(u.device)); err == nil && u.follow(ctx, c) {
			pause.Reset()
		}
		backoff.Sleep(ctx, pause.Next())
	}
}

// accept follows the agents that connect, until ctx ends.
func (u *Use) accept(ctx context.Context, l *net.UnixListener) {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	defer l.Close()
	var following sync.WaitGroup
	defer following.Wait()
	free := make(chan struct{}, mostOthers)
	pause := backoff.Backoff{Lo: 100 * time.Millisecond, Hi: 10 * time.Second}
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		c, err := l.AcceptUnix()
		if err != nil {
			<-free
			if !backoff.Sleep(ctx, pause.Next()) { // few file descriptors, for example
				return
			}
			continue
		}
		pause.Reset()
		following.Go(func() { u.follow(ctx, c); <-free })
	}
}

// follow shows the agent at the other end of a connection until that ends. It returns false for a process that can't be
// an agent with this device.
func (u *Use) follow(ctx context.Context, c *net.UnixConn) bool {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	pid, err := peer(c)
	if err != nil {
		u.log.Debug("connection for a device ignored", "device", u.device, "err", err)
		return false
	}
	o := Other{PID: pid, Since: time.Now()}
	u.add(o)
	defer u.remove(o, ctx)
	_, _ = c.Read(make([]byte, 1))
	return true
}

// peer returns the process at the other end. Anybody may use the name of an abstract socket, so only processes of root and
// of this user count.
func peer(c *net.UnixConn) (int, error) {
	cred, err := sockopt.PeerOf(c)
	if err != nil {
		return 0, err
	}
	if own := os.Geteuid(); cred.Uid != 0 && int(cred.Uid) != own {
		return 0, fmt.Errorf("process %d is of user %d", cred.Pid, cred.Uid)
	}
	return int(cred.Pid), nil
}

func (u *Use) add(o Other) {
	u.mu.Lock()
	u.others = append(u.others, o)
	u.mu.Unlock()
	message := fmt.Sprintf("%s uses %s, too: each can undo what the other one changes", o, u.device)
	u.log.Warn("device shared with another agent", "device", u.device, "pid", o.PID)
	u.events.Add(event.Event{Kind: "device_shared", Object: u.device, Message: message})
}

func (u *Use) remove(o Other, ctx context.Context) {
	u.mu.Lock()
	i := slices.Index(u.others, o)
	u.others = slices.Delete(u.others, i, i+1)
	u.mu.Unlock()
	if ctx.Err() != nil {
		return // it is this agent that ends
	}
	u.log.Info("device no longer shared with that agent", "device", u.device, "pid", o.PID)
	u.events.Add(event.Event{Kind: "device_unshared", Object: u.device, Message: fmt.Sprintf("%s no longer uses %s", o, u.device)})
}
