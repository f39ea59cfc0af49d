package probe

import (
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Targets of every type follow their server: healthy, unhealthy with the reason, healthy again. The
// whole engine runs, with real sockets.
func TestTargetsFollowTheirServers(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		t.Parallel()
		var down atomic.Bool
		web := serve(t, f.host, nil, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.ProtoMajor == 2 && down.Load():
				w.Header().Set("Content-Type", "application/grpc")
				w.Header().Set("Grpc-Status", "12")
			case r.ProtoMajor == 2:
				health(w, r)
			case down.Load():
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		banner := listen(t, f.host, func(c net.Conn) {
			if !down.Load() {
				c.Write([]byte("ready"))
			}
		})
		echo := listenUDP(t, f.host, func(b []byte) []byte {
			if down.Load() {
				return []byte("no")
			}
			return b
		})
		at := map[Target]string{ // with the reason for unhealthy
			NewTarget(web, quick(vip.HealthCheck{Type: vip.CheckHTTP})):                         "status 503, want 200-399",
			NewTarget(web, quick(vip.HealthCheck{Type: vip.CheckGRPC})):                         "grpc-status 12: the server has no health service",
			NewTarget(banner, quick(vip.HealthCheck{Type: vip.CheckTCP, Expect: "ready"})):      "connection closed before the expected answer",
			NewTarget(echo, quick(vip.HealthCheck{Type: vip.CheckUDP, Send: "x", Expect: "x"})): `answer "no" does not begin with "x"`,
		}
		e, _ := start(t, Options{})
		for target := range at {
			e.Start(target, Use{Namespace: "default"})
		}
		expect := func(h vip.Health) {
			t.Helper()
			wait.Until(t, h.String(), func() bool {
				n := 0
				for target, reason := range at {
					if r, _, _ := e.o.Results.Get(target); r.Health == h && (h == vip.Healthy && r.Reason == "" || r.Reason == reason) {
						n++
					}
				}
				return n == len(at)
			}, func() any {
				var all []Result
				for _, r := range e.o.Results.All() {
					all = append(all, r)
				}
				return all
			})
		}
		expect(vip.Healthy)
		down.Store(true)
		expect(vip.Unhealthy)
		down.Store(false)
		expect(vip.Healthy)
	})
}

// quick returns a check with short intervals and without a timeout that a busy machine could exceed.
func quick(c vip.HealthCheck) vip.HealthCheck {
	c.Interval, c.Timeout, c.Fall = vip.MinCheckInterval, 30*time.Second, 2
	return c
}
