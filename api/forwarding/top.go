package forwarding

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ironvip/ironvip/api/request"
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

// topServices sends the rates of the busiest services at intervals.
func (h *Handlers) topServices(ctx context.Context, in *topInput) (*server.Stream, error) {
	interval, err := time.ParseDuration(in.Interval)
	if err != nil || interval < time.Second || interval > time.Minute {
		return nil, server.BadRequest("interval must be between 1s and 1m", "use a duration such as interval=5s",
			vip.Problem{Code: vip.CodeInvalid, Field: "query.interval", Message: "must be between 1s and 1m"})
	}
	return request.StreamLines(ctx, h.http, func(to request.Lines) {
		to.Flush()
		h.sendTop(to, interval, in)
	})
}

// sendTop sends a line per interval, until the caller is gone or has its count of lines. It compares the
// counters with those of its read before. Callers share a read of the counters that is at most half an
// interval old, because a read costs O(frontends).
func (h *Handlers) sendTop(to request.Lines, interval time.Duration, in *topInput) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var last map[vip.ServiceKey]reconcile.Traffic
	var read time.Time
	for sent := 0; ; {
		to.Allow(interval)
		totals, now, err := h.totals.Get(to.H.Context(), interval/2, h.serviceTotals)
		line := v1.Top{Time: now.UTC(), Items: []v1.TopService{}}
		isLine := err != nil || last != nil && now.After(read) // else there is nothing to compare with
		if err != nil {
			line.Problem = &v1.Problem{Code: v1.CodeDataplane, Message: err.Error()}
		} else if isLine {
			line = top(line, last, totals, now.Sub(read), in)
		}
		if isLine {
			if to.Out.Encode(line) != nil || err != nil && in.Count > 0 {
				return
			}
			to.Flush()
			if sent++; sent == in.Count {
				return
			}
		}
		if err == nil {
			last, read = totals, now
		}
		select {
		case <-to.Done():
			return
		case <-tick.C:
		}
	}
}

// top returns the line of an interval. A service that was not there before began at 0. Counters that
// are lower than before, because the dataplane has created a frontend again, count from 0, too.
func top(line v1.Top, last, now map[vip.ServiceKey]reconcile.Traffic, took time.Duration, of *topInput) v1.Top {
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
		switch of.By {
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
		return cmp.Or(cmp.Compare(b.value, a.value), cmp.Compare(b.Active, a.Active), a.key.Compare(b.key))
	}
	rows := make([]row, 0, len(now))
	for key, t := range now {
		was := last[key]
		r := row{key: key, TopService: v1.TopService{Active: t.Active, Connections: rate(was.Connections, t.Connections),
			In: rate(was.In.Bytes, t.In.Bytes), Out: rate(was.Out.Bytes, t.Out.Bytes)}}
		line.Sum.Active += r.Active
		line.Sum.Connections += r.Connections
		line.Sum.In += r.In
		line.Sum.Out += r.Out
		r.value = value(&r.TopService)
		rows = append(rows, r)
	}
	slices.SortFunc(rows, compare)
	for _, r := range rows[:min(of.Limit, len(rows))] {
		r.Service = r.key.String()
		line.Items = append(line.Items, r.TopService)
	}
	return line
}
