package agent

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
)

// signals are those that ask for a reload or for a successor. They are caught for the whole life of
// the process, so that none ends it: a signal during the start waits for the agent.
type signals struct{ hangup, upgrade chan os.Signal }

func catchSignals() *signals {
	s := &signals{make(chan os.Signal, 1), make(chan os.Signal, 1)}
	signal.Notify(s.hangup, syscall.SIGHUP)
	signal.Notify(s.upgrade, syscall.SIGUSR2)
	return s
}

// reload acts like SIGHUP.
func (s *signals) reload() {
	select {
	case s.hangup <- syscall.SIGHUP:
	default:
	}
}

// strays handles the signals while another process takes over and afterwards.
type strays struct {
	reload, over atomic.Bool
	cancel       context.CancelFunc
	work         sync.WaitGroup
}

// during handles the signals until stop.
func (s *signals) during(log *slog.Logger, r *request) *strays {
	ctx, cancel := context.WithCancel(context.Background())
	x := &strays{cancel: cancel}
	x.work.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.hangup:
				if x.reload.Store(true); x.over.Load() {
					log.Warn("SIGHUP ignored: another process is the agent", "pid", r.PID)
				}
			case <-s.upgrade:
				log.Warn("SIGUSR2 ignored: another process takes over, or is the agent", "pid", r.PID)
			}
		}
	})
	return x
}

// handedOver returns whether a reload was requested. The other process must do it.
func (x *strays) handedOver() (reload bool) {
	x.over.Store(true)
	return x.reload.Load()
}

func (x *strays) stop() {
	x.cancel()
	x.work.Wait()
}
