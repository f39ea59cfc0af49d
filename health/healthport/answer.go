package healthport

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/internal/table"
)

// weightHeader is the header with the number of backends on this node.
const weightHeader = "X-Load-Balancing-Endpoint-Weight"

// body is the answer's body, with Kubernetes' names.
type body struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// awaitStart waits until the dataplane has been programmed for the first time, for up to startTime
// and the life of the server.
func (s *Server) awaitStart() {
	if s.Synced == nil || table.IsClosed(s.Synced) {
		return
	}
	timeout := time.NewTimer(startTime)
	defer timeout.Stop()
	select {
	case <-s.Synced:
	case <-timeout.C:
	case <-s.ctx.Done():
	}
}

type connectionKey struct{}

// withConnection is a ConnContext of http.Server.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, c)
}

// ServeHTTP answers for one service, for every path and method. Until here, another connection may replace
// the client's.
func (p *port) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c, is := r.Context().Value(connectionKey{}).(*connlimit.Conn); is {
		c.Busy()
	}
	p.server.awaitStart()
	ready, healthy := int(p.ready.Load()), p.server.Healthy()
	var b body
	b.Service.Namespace, b.Service.Name = p.service.Namespace, p.service.Name
	b.LocalEndpoints, b.ServiceProxyHealthy = ready, healthy
	text, err := json.Marshal(b)
	if err != nil {
		panic(err) // two names and two numbers
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set(weightHeader, strconv.Itoa(ready))
	status := http.StatusServiceUnavailable
	if ready > 0 && healthy {
		status = http.StatusOK
	}
	w.WriteHeader(status)
	_, _ = w.Write(text) // an error means that the client is gone
}
