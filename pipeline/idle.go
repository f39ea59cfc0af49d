package pipeline

import (
	"context"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// askTimeout bounds one query to the dataplane.
const askTimeout = 5 * time.Second

// question asks whether leaving endpoints of a frontend still have connections.
type question struct {
	key       vip.FrontendKey
	endpoints []vip.Endpoint
}

// questions returns the queries for the dataplane: the leaving endpoints that, as far as is known,
// get no new connections from it. It omits real servers, because the dataplane doesn't see their
// connections, and whole VIPs for the same reason. The host's own listener has them, and only the deadline ends their drain.
func (d *drains) questions() []question {
	out := make([]question, 0, d.leaving.Len())
	for key := range d.leaving.All() {
		f, rev, _ := d.o.Frontends.Get(key)
		if f.Kind == vip.OnRealServer || key.Whole() {
			continue
		}
		if a, _, ok := d.o.Applied.Get(key); !ok || a.Tried.Rev < rev || a.Problem != nil {
			continue
		}
		q := question{key: key}
		for _, e := range f.Backends {
			if e.IsLeaving() {
				q.endpoints = append(q.endpoints, e)
			}
		}
		out = append(out, q)
	}
	return out
}

// askConnections answers lists of questions with the endpoints that have no connection left, until
// ctx ends. It has its own goroutine, so that a slow dataplane delays nothing else.
func askConnections(ctx context.Context, plane reconcile.Connections, asked <-chan []question, idle chan<- []question, log *slog.Logger) {
	for {
		var list []question
		select {
		case <-ctx.Done():
			return
		case list = <-asked:
		}
		var answers []question
		for _, q := range list {
			if free, err := withoutConnections(ctx, plane, q); err != nil {
				log.Debug("ask for connections; the deadline decides", "frontend", q.key, "err", err)
			} else if len(free) > 0 {
				answers = append(answers, question{key: q.key, endpoints: free})
			}
			if ctx.Err() != nil {
				return
			}
		}
		if len(answers) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case idle <- answers:
		}
	}
}

func withoutConnections(ctx context.Context, plane reconcile.Connections, q question) (free []vip.Endpoint, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	open, err := plane.Connections(ctx, q.key)
	if err != nil {
		return nil, err
	}
	for _, e := range q.endpoints {
		if open[e.Addr] == 0 {
			free = append(free, e)
		}
	}
	return free, nil
}

// left removes the endpoints that have no connection left. An endpoint that returned and left again
// since the question has another deadline, and is kept.
func (d *drains) left(answers []question) {
	for _, q := range answers {
		d.takeOut(q.key, "drained, no connection left", func(e vip.Endpoint) bool {
			for _, free := range q.endpoints {
				if free.Addr == e.Addr && free.Leaving == e.Leaving {
					return true
				}
			}
			return false
		})
	}
}
