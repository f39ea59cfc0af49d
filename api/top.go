package api

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

type topInput struct {
	Interval string `query:"interval" default:"5s" doc:"between two reads of the counters: 1s to 1m"`
	Limit    int    `query:"limit" minimum:"1" maximum:"1000" default:"20" doc:"services in a line"`
	Count    int    `query:"count" minimum:"0" doc:"end after this many lines; 0: never"`
	By       string `query:"by" enum:"connections,active,in,out,bytes" default:"connections" doc:"sort by the rate of connections, open connections, or the rate of bytes"`
}

// topKey is what streams with the same lines have in common.
type topKey struct {
	interval time.Duration
	by       string
	limit    int
}

// topCounters are the counters of a service that a line needs. They are kept between two reads.
type topCounters struct{ connections, active, in, out uint64 }

// topCounters reads the counters of every service, at a cost of O(frontends).
func (s *Server) topCounters(ctx context.Context) (map[vip.ServiceKey]topCounters, error) {
	return totalsOf(ctx, s, func(sum topCounters, t *reconcile.Traffic) topCounters {
		return topCounters{sum.connections + t.Connections, sum.active + t.Active, sum.in + t.In.Bytes, sum.out + t.Out.Bytes}
	})
}

// topLine is a line of a stream of the busiest services, encoded.
type topLine struct {
	text    []byte
	problem bool // that the counters are not readable
}

// topServices sends the rates of the busiest services at intervals.
func (s *Server) topServices(ctx context.Context, in *topInput) (*server.Stream, error) {
	interval, err := time.ParseDuration(in.Interval)
	if err != nil || interval < time.Second || interval > time.Minute {
		return nil, server.BadRequest("interval must be between 1s and 1m", "use a duration such as interval=5s",
			vip.Problem{Code: vip.CodeInvalid, Field: "query.interval", Message: "must be between 1s and 1m"})
	}
	end, err := s.http.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	return server.NewStream(func(h huma.Context) {
		defer end()
		h.SetHeader("Content-Type", ndjson)
		h.SetStatus(http.StatusOK)
		if f, ok := h.BodyWriter().(http.Flusher); ok {
			f.Flush()
		}
		s.sendTop(h, topKey{interval, in.By, in.Limit}, in.Count)
	}), nil
}

// sendTop sends the lines that all callers with the same parameters share, beginning with the newest if
// there is one.
func (s *Server) sendTop(h huma.Context, key topKey, count int) {
	lines, leave := s.tops.follow(key, func(ctx context.Context) *newest[topLine] {
		lines := newNewest[topLine]()
		go s.makeTop(ctx, key, lines)
		return lines
	})
	defer leave()
	for sent := 0; count == 0 || sent < count; {
		server.Allow(h.Context(), key.interval+answerTime)
		line, next := lines.get()
		if line.text != nil {
			if _, err := h.BodyWriter().Write(line.text); err != nil || line.problem && count > 0 {
				return
			}
			if f, ok := h.BodyWriter().(http.Flusher); ok {
				f.Flush()
			}
			if sent++; sent == count {
				return
			}
		}
		select {
		case <-h.Context().Done():
			return
		case <-next:
		}
	}
}

// makeTop makes a line per interval until ctx ends. It reads the counters once per interval, which costs
// O(frontends), and compares them with those of the read before, which it keeps. Lines with other
// parameters share a read that is at most half an interval old.
func (s *Server) makeTop(ctx context.Context, key topKey, lines *newest[topLine]) {
	tick := time.NewTicker(key.interval)
	defer tick.Stop()
	var last map[vip.ServiceKey]topCounters
	var read time.Time
	for {
		totals, now, err := s.totals.get(ctx, key.interval/2, s.topCounters)
		line := v1.Top{Time: now.UTC(), Items: []v1.TopService{}}
		switch {
		case err != nil:
			line.Problem = &v1.Problem{Code: v1.CodeDataplane, Message: err.Error()}
		case last != nil:
			line = top(line, last, totals, now.Sub(read), key)
		}
		if err == nil {
			last, read = totals, now
		}
		if len(line.Items) > 0 || line.Seconds > 0 || err != nil {
			if text, err := json.Marshal(line); err == nil {
				lines.set(topLine{append(text, '\n'), line.Problem != nil})
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// top returns the line of an interval. A service that was not there before began at 0. Counters that
// are lower than before, because the dataplane has created a frontend again, count from 0, too.
func top(line v1.Top, last, now map[vip.ServiceKey]topCounters, took time.Duration, of topKey) v1.Top {
	line.Seconds, line.Services = took.Seconds(), len(now)
	rate := func(before, after uint64) float64 {
		if after < before {
			before = 0
		}
		return float64(after-before) / line.Seconds
	}
	type row struct {
		key   vip.ServiceKey
		value float64
		v1.TopService
	}
	value := func(r *v1.TopService) float64 {
		switch of.by {
		case "active":
			return float64(r.Active)
		case "in":
			return r.In
		case "out":
			return r.Out
		case "bytes":
			return r.In + r.Out
		}
		return r.Connections
	}
	compare := func(a, b row) int {
		return cmp.Or(cmp.Compare(b.value, a.value), cmp.Compare(b.Active, a.Active), compareKeys(a.key, b.key))
	}
	var busiest []row // sorted, at most limit
	for key, t := range now {
		was := last[key]
		r := row{key: key, TopService: v1.TopService{Active: t.active, Connections: rate(was.connections, t.connections),
			In: rate(was.in, t.in), Out: rate(was.out, t.out)}}
		line.Sum.Active += r.Active
		line.Sum.Connections += r.Connections
		line.Sum.In += r.In
		line.Sum.Out += r.Out
		r.value = value(&r.TopService)
		if full := len(busiest) == of.limit; full && compare(r, busiest[of.limit-1]) > 0 {
			continue
		} else if full {
			busiest = busiest[:of.limit-1]
		}
		i, _ := slices.BinarySearchFunc(busiest, r, compare)
		busiest = slices.Insert(busiest, i, r)
	}
	for _, r := range busiest {
		r.Service = r.key.String()
		line.Items = append(line.Items, r.TopService)
	}
	return line
}
