package kubeclient

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// LogTo redirects client-go's log to log, at debug level. Relevant messages are also errors that
// client-go's callers receive. Call it at the program's start, because client-go has one log for
// the whole program.
func LogTo(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(quiet{log.Handler()}))
}

// quiet is a handler that lowers all records to debug level.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	if !q.Enabled(ctx, r.Level) { // not all of client-go calls Enabled first
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
