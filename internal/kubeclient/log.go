package kubeclient

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// LogTo has what client-go logs go to log, at debug level: what matters of it is
// also in an error that its caller gets. It is for a program's start, as
// client-go has one log for the whole program.
func LogTo(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(quiet{log.Handler()}))
}

// quiet is a handler that takes everything for a detail.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	if !q.Enabled(ctx, r.Level) { // not everything of client-go asks first
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
