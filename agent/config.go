package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/logwriter"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/vip"
)

// liveConfig is the configuration in effect and the result of the last load.
type liveConfig struct {
	mu       sync.Mutex
	cfg      *configs.Config
	started  *configs.Config // the configuration at the agent's start
	problems []vip.Problem   // of the last load; the configuration in effect has none of them
	at       time.Time       // of the last load
}

func newLiveConfig(cfg *configs.Config, problems []vip.Problem) *liveConfig {
	return &liveConfig{cfg: cfg, started: cfg, problems: problems, at: time.Now()}
}

// get returns the configuration in effect. Callers must not change it.
func (l *liveConfig) get() *configs.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cfg
}

// startedWith returns the configuration at the agent's start.
func (l *liveConfig) startedWith() *configs.Config { return l.started }

// diff returns the keys that differ in a new configuration: those that a reload applies now, and those that wait for a
// restart, including those of earlier reloads. Running is the dataplane that serves: a mode that keeps it waits for nothing.
func (l *liveConfig) diff(cfg *configs.Config, running string) (live, restart []string) {
	live, _ = configs.Diff(l.get(), cfg)
	_, restart = configs.Diff(l.started, cfg)
	if mode := cfg.Dataplane.Mode; mode == configs.ModeAuto || mode == running {
		restart = slices.DeleteFunc(restart, func(key string) bool { return key == modeKey })
	}
	return live, restart
}

// modeKey is the key whose change a switch applies as well.
const modeKey = "dataplane.mode"

// set records a load. A nil configuration was rejected: the old one remains.
func (l *liveConfig) set(cfg *configs.Config, problems []vip.Problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cfg != nil {
		l.cfg = cfg
	}
	l.problems, l.at = problems, time.Now()
}

// last returns the result of the last load.
func (l *liveConfig) last() (problems []vip.Problem, at time.Time, lastGood bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problems, l.at, l.cfg.IsLastGood
}

// check returns the configuration's line of `ironvip status`.
func (l *liveConfig) check(running string) v1.Check {
	problems, at, lastGood := l.last()
	_, pending := l.diff(l.get(), running)
	c := v1.Check{Name: "config", Level: v1.LevelOK, Message: fmt.Sprintf("loaded %s ago", time.Since(at).Round(time.Second))}
	switch {
	case lastGood:
		c.Level, c.Message = v1.LevelWarn, "running on the last good ironvip.toml: "+problems[0].Error()
		c.Hint = "correct the file, then: ironvip reload"
	case len(problems) > 0:
		c.Level = v1.LevelWarn
		c.Message = "refused at the last load: " + firstOf(problems)
		c.Hint = "run `ironvip config validate` to see all"
	case len(pending) > 0:
		c.Level, c.Message = v1.LevelWarn, "restart needed for "+strings.Join(pending, ", ")
		c.Hint, c.Next = "systemctl restart ironvip", "ironvip config plan"
	}
	return c
}

// stderr is where all loggers of this process write. They don't wait for its reader.
var stderr = sync.OnceValue(func() *logwriter.Writer { return logwriter.New(os.Stderr) })

// newLogger logs to stderr, without times if systemd adds them.
func newLogger(cfg *configs.Config, level *slog.LevelVar) *slog.Logger {
	setLevel(level, cfg)
	options := logwriter.HandlerOptions(level)
	if cfg.Log.Format == "json" {
		return stderr().Logger(func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, options) })
	}
	return stderr().Logger(func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, options) })
}

func setLevel(level *slog.LevelVar, cfg *configs.Config) {
	var l slog.Level
	if l.UnmarshalText([]byte(cfg.Log.Level)) == nil { // configs validates the level
		level.Set(l)
	}
}

// listener is an open socket that accepts clients.
type listener interface {
	net.Listener
	sockets.Socket
}

// listen opens the API's listeners: two, one, or none.
func listen(ctx context.Context, cfg *configs.Config, set *sockets.Set) ([]listener, error) {
	var all []listener
	if cfg.API.Socket != "" {
		l, err := set.ListenUnix(ctx, cfg.API.Socket, os.FileMode(cfg.API.SocketMode))
		if err != nil {
			return nil, fmt.Errorf("%w\nhint: %s", err, socketHint(err))
		}
		all = append(all, l)
	}
	if cfg.API.Listen != "" {
		var l *net.TCPListener
		at, err := net.ResolveTCPAddr("tcp", cfg.API.Listen)
		if err == nil {
			l, err = set.ListenTCP(ctx, netip.AddrPortFrom(at.AddrPort().Addr().Unmap(), uint16(at.Port)))
		}
		if err != nil {
			for _, l := range all {
				set.Release(l)
			}
			return nil, fmt.Errorf("listen on api.listen: %w\nhint: is another agent running? set api.listen to a free address, or to \"\"", err)
		}
		all = append(all, l)
	}
	return all, nil
}

// socketHint returns what to do if the API's unix socket can't be opened.
func socketHint(err error) string {
	switch {
	case errors.Is(err, sockets.ErrInUse):
		return "stop that agent, or set api.socket to another path"
	case errors.Is(err, sockets.ErrNotSocket):
		return "remove it, or set api.socket to another path"
	}
	return "set api.socket to a path in a directory that this process can write or create"
}

// logProblem logs a problem as an error, with its hint if it has one.
func (a *agent) logProblem(what string, p vip.Problem) {
	var attrs []any
	if p.Hint != "" {
		attrs = append(attrs, "hint", p.Hint)
	}
	a.log.Error(what+": "+p.Error(), attrs...)
}
