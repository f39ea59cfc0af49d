package api

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/text"
)

// addRefusals adds the counters of refused clients and callers. It costs O(services in the proxy's report).
func (s *Server) addRefusals(w *metric.Writer) {
	w.Add(familyAPIRefused, float64(s.http.RefusedConnections.Count()), "connections")
	w.Add(familyAPIRefused, float64(s.http.RefusedOfClients.Count()), "client_connections")
	w.Add(familyAPIRefused, float64(s.http.RefusedRequests.Count()), "client_requests")
	w.Add(familyAPIRefused, float64(s.http.RefusedStreams.Count()), "streams")
	w.Add(familyAPIRefused, float64(s.http.RefusedStreamsOfClients.Count()), "client_streams")
	report := s.Services.Proxy()
	for _, r := range report.Refusals {
		w.Add(familyRefused, float64(r.Count), r.Reason)
	}
	for key, one := range report.Services {
		w.Truth(familyFull, one.Full, key.String())
		if one.Most > 0 {
			w.Add(familyQueue, float64(one.Waiting), key.String())
		}
		for _, r := range one.Refusals {
			w.Add(familyServiceRefused, float64(r.Count), key.String(), r.Reason)
		}
	}
}

// recentRefusal is how long the status shows that the API has refused callers.
const recentRefusal = time.Minute

// limitChecks returns the line of the status on the limits of the API itself, if it has refused
// callers recently.
func (s *Server) limitChecks() []v1.Check {
	const streams = "close connections, streams and blocking reads that are not needed, or raise LimitNOFILE"
	var refused, fixes []string
	add := func(r *server.Refusals, what, rule string, most int, fix string) {
		if !r.Within(recentRefusal) {
			return
		}
		refused = append(refused, fmt.Sprintf("%s refused since the start: "+rule, text.Plural(int(r.Count()), what), most))
		if !slices.Contains(fixes, fix) {
			fixes = append(fixes, fix)
		}
	}
	if s.http.ClientRate != nil {
		add(&s.http.RefusedRequests, "request", "one client may send %d in a second", s.http.ClientRate(), "send fewer requests, or raise api.rate_limit")
	}
	add(&s.http.RefusedConnections, "connection", "at most %d may be open on each listener", s.http.Connections, streams)
	add(&s.http.RefusedOfClients, "connection", "one client may have %d on each listener", s.http.ClientConnections, streams)
	add(&s.http.RefusedStreamsOfClients, "stream", "one client may have %d", s.http.MostClientStreams(), streams)
	add(&s.http.RefusedStreams, "stream", "at most %d may be open", s.http.MostStreams(), streams)
	if refused == nil {
		return nil
	}
	return []v1.Check{{Name: "api", Level: v1.LevelWarn, Message: strings.Join(refused, "; "), Hint: strings.Join(fixes, "; ") + "; traffic is not affected"}}
}
