package api

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// serviceRows are the rows of all services, encoded once for all who watch them. They are the same for
// every caller who may view services. A change costs O(changed services), and one line for each watcher.
// The rows need a few hundred bytes for each service, while somebody watches.
type serviceRows struct {
	table    *table.Table[vip.ServiceKey, serviceRow]
	complete chan struct{} // closed when table has all services of the beginning
}

// serviceRow is a line of a stream, with what selects it.
type serviceRow struct {
	key    vip.ServiceKey
	source string
	labels map[string]string
	line   []byte
}

// followRows returns the rows. The caller calls leave at the end.
func (s *Server) followRows() (rows *serviceRows, leave func()) {
	return s.rows.follow(struct{}{}, func(ctx context.Context) *serviceRows {
		rows := &serviceRows{complete: make(chan struct{}), table: table.New(&table.Clock{}, func(r *serviceRow) vip.ServiceKey { return r.key },
			func(a, b serviceRow) bool { return bytes.Equal(a.line, b.line) })}
		go s.makeRows(ctx, rows)
		return rows
	})
}

// makeRows keeps the rows up to date until ctx ends.
func (s *Server) makeRows(ctx context.Context, rows *serviceRows) {
	feed := s.tables.Revisions.Watch()
	defer feed.Close()
	for complete := false; ; complete = true {
		next := s.tables.Revisions.Changed() // before looking
		services := make(map[vip.ServiceKey]struct{})
		eachChange(feed, func(k *vip.ServiceKey) { services[*k] = struct{}{} })
		// The first watcher sees the first rows early.
		for some := range slices.Chunk(slices.SortedFunc(maps.Keys(services), compareKeys), mostData) {
			var changed []serviceRow
			for _, key := range some {
				if row, exists := s.row(key); exists {
					changed = append(changed, row)
				} else {
					rows.table.Delete(key)
				}
			}
			if rows.table.SetAll(changed); ctx.Err() != nil {
				return
			}
		}
		if !complete {
			close(rows.complete)
		}
		if !backoff.Sleep(ctx, pace) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
	}
}

// row returns the row of a service.
func (s *Server) row(key vip.ServiceKey) (out serviceRow, exists bool) {
	row, exists := s.summary(key)
	if !exists {
		return out, false
	}
	line, err := json.Marshal(v1.ServiceChange{Summary: &row})
	return serviceRow{key, row.Source, row.Labels, line}, err == nil
}

// sendRows sends the rows that a caller selects, and their changes, until the caller is gone, or no longer
// permitted.
func (s *Server) sendRows(to changeStream, selection *Selection) {
	rows, leave := s.followRows()
	defer leave()
	feed := rows.table.Watch()
	defer feed.Close()
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	if to.out.begin() != nil {
		return
	}
	selects := selector(selection)
	for complete := rows.complete; ; {
		isComplete := table.IsClosed(complete) // before looking; nil once the caller knows it
		batch, changed := feed.TryNext()
		for ; len(batch) > 0; batch, changed = feed.TryNext() {
			server.Allow(to.h.Context(), answerTime)
			for i := range batch {
				line := batch[i].Value.line
				switch selected, selectedBefore := selects(&batch[i]); {
				case selected:
				case selectedBefore:
					line, _ = json.Marshal(v1.ServiceChange{Deleted: batch[i].Value.key.String()}) // a string
				default:
					continue
				}
				if to.out.line(line) != nil {
					return
				}
			}
		}
		if isComplete {
			if complete = nil; to.send(v1.ServiceChange{Synced: true}) != nil {
				return
			}
		}
		if to.out.end() != nil {
			return
		}
		to.flush()
		for idle := true; idle; {
			select {
			case <-to.h.Context().Done():
				return
			case <-tick.C:
				if !to.keepAlive() {
					return
				}
			case <-changed:
				idle = false
			case <-complete:
				idle = false
			}
		}
	}
}

// selector returns a function that reports whether a changed row is selected, and whether it was. Without a
// selection, which needs no memory, a deleted row was selected.
func selector(of *Selection) func(*table.Change[serviceRow]) (now, before bool) {
	if of.Source == "" && len(of.Label) == 0 {
		return func(c *table.Change[serviceRow]) (now, before bool) { return !c.Deleted, c.Deleted }
	}
	sent := map[vip.ServiceKey]struct{}{}
	return func(c *table.Change[serviceRow]) (now, before bool) {
		row := &c.Value
		_, before = sent[row.key]
		if now = !c.Deleted && of.matches(row.source, row.labels); now {
			sent[row.key] = struct{}{}
		} else {
			delete(sent, row.key)
		}
		return now, before
	}
}
