package api

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/tokens"
	"github.com/ironvip/ironvip/internal/access"
)

// BenchmarkAuthorization measures which part of a GET of one service is the check of a token. Batches
// with and without the check alternate, so that the load of the machine changes both. The request
// doesn't include the network.
func BenchmarkAuthorization(b *testing.B) {
	var checks bool
	r := newRig(b, func(d *Deps) {
		d.Policy = func() *access.Policy { return &access.Policy{Everyone: !checks, Tokens: d.Tokens.Caller} }
	})
	handler := r.server.Handler()
	request := func(method, body, token string) {
		req := httptest.NewRequest(method, webPath, strings.NewReader(body))
		req.Host = "localhost"
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		answer := httptest.NewRecorder()
		if handler.ServeHTTP(answer, req); answer.Code >= 300 {
			b.Fatal(answer.Code, answer.Body)
		}
	}
	request(http.MethodPut, `{"ports":[{"port":80}],"backends":[{"address":"10.0.0.1"},{"address":"10.0.0.2"}]}`, "")
	secret, err := r.deps.Tokens.Create(b.Context(), tokens.Token{Name: "viewer", Grant: access.Grant{Role: access.Viewer}})
	if err != nil {
		b.Fatal(err)
	}
	const batch = 10 // too short for most interruptions
	measure := func(check bool) time.Duration {
		checks = check
		start := time.Now()
		for range batch {
			if check {
				request(http.MethodGet, "", secret)
			} else {
				request(http.MethodGet, "", "")
			}
		}
		return time.Since(start)
	}
	var with, without []time.Duration
	for b.Loop() {
		with, without = append(with, measure(true)), append(without, measure(false))
	}
	checked, unchecked := undisturbed(with), undisturbed(without)
	b.ReportMetric(float64(checked.Nanoseconds())/batch, "ns/request")
	b.ReportMetric(100*float64(checked-unchecked)/float64(checked), "auth-%")
}

// undisturbed returns the time of a batch that other programs did not interrupt: a tenth was faster.
func undisturbed(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/10]
}
