package process

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/ironvip/ironvip/internal/logwriter"
	"github.com/ironvip/ironvip/internal/memlimit"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockets"
)

// MainOptions are the settings of a process.
type MainOptions struct {
	Socket  string // for the agent, unless systemd passes a socket
	Version string
}

// Times of the process.
const (
	stopGrace = 500 * time.Millisecond // for requests in progress at the end: new clients are refused already
	idleTime  = 10 * time.Second       // without an agent, a frontend and a connection, until a process that systemd starts on demand ends
)

// Main runs a proxy that logs to stderr, until SIGINT or SIGTERM. SIGHUP replaces it by the program that has its name now,
// without refusing a client. It is what "ironvip proxy" and ironvip-proxy do.
func Main(ctx context.Context, o MainOptions) error {
	signaled, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	log, flush := logwriter.OfProcess()
	defer flush()
	slog.SetDefault(log) // for what has no log of its own, such as parallel.Recovered

	memlimit.Apply()
	s, l, err := inherit(signaled, o, log)
	if err != nil {
		return err
	}
	defer s.Close()
	log.Info("the proxy runs", "version", o.Version, "socket", l.Addr().String())
	notify(daemon.SdNotifyReady)
	defer notify(daemon.SdNotifyStopping)

	work, ctx := parallel.NewGroup(signaled)
	work.Go(func() error { return s.Serve(ctx, l) })
	work.Go(func() error { s.feedWatchdog(ctx); return nil })
	work.Go(func() error {
		idle := time.NewTicker(time.Second)
		defer idle.Stop()
		for since := time.Now(); ; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-hangup:
				if err := s.replace(ctx, l); err != nil {
					log.Error("not replaced; this process goes on", "err", err)
					continue
				}
				return errReplaced
			case <-idle.C:
				if s.conns.Connected() || !s.Idle() {
					since = time.Now()
				}
				if s.onDemand && time.Since(since) > idleTime {
					return errIdle
				}
			}
		}
	})
	err = work.Wait()
	switch {
	case errors.Is(err, errReplaced):
		s.drainReplaced(signaled, log)
		return nil
	case errors.Is(err, errIdle):
		log.Info("nothing to do any more")
		return nil
	case errors.Is(err, context.Canceled):
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer cancel()
		s.Drain(ctx)
		return nil
	}
	return err
}

// The reasons for which a process ends by itself.
var (
	errReplaced = errors.New("another process serves")
	errIdle     = errors.New("nothing to do")
)

// inherit returns what the process begins with, and the socket for the agent: those of the process which it replaces, the
// socket of systemd, or a new one.
func inherit(ctx context.Context, o MainOptions, log *slog.Logger) (s *Server, l net.Listener, err error) {
	if s, l, err = succeed(ctx, o, log); s != nil || err != nil {
		return s, l, err
	}
	set, problems := sockets.FromEnvironment()
	for _, err := range problems {
		log.Warn("inherited socket not used", "err", err)
	}
	s = New(Options{Version: o.Version, Log: log})
	if s.onDemand = set.Unclaimed() > 0; s.onDemand {
		l, err = set.ListenUnix(ctx, set.UnixPath(), socketMode)
	} else {
		l, err = mirror.Listen(o.Socket, "proxy")
	}
	return s, l, err
}

// socketMode is that of the socket: only the user of both processes may connect, and root.
const socketMode = 0o600

// feedWatchdog notifies systemd for as long as the proxy makes turns.
func (s *Server) feedWatchdog(ctx context.Context) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil || limit == 0 {
		return
	}
	tick := time.NewTicker(limit / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if at := s.LastTurn(); at.IsZero() || time.Since(at) < limit {
				notify(daemon.SdNotifyWatchdog)
			}
		}
	}
}

func notify(state string) { _, _ = daemon.SdNotify(false, state) }
