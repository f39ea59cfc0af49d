//go:build system

package browser

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
)

// A page of a service also reads the service every ten seconds. It does not show an answer that is older than what
// the stream has told since.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	a.put("default/web", 80, one.at, two.at)
	agent, err := url.Parse(a.base)
	if err != nil {
		t.Fatal(err)
	}
	// The proxy asks the agent at once, and waits with the answer until the test takes it, and for a step of the test.
	forward := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(agent)
		r.Out.Host = r.In.Host // the page's origin, or the agent refuses the request
	}}
	held, step := make(chan *http.Request), make(chan struct{})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/services/default/web" {
			forward.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		forward.ServeHTTP(answer, r)
		select {
		case held <- r:
			<-step
		case <-t.Context().Done():
		}
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(proxy.CloseClientConnections) // streams don't end by themselves

	b := open(t, proxy.URL, "/ui/")
	b.before("const real = setTimeout; globalThis.setTimeout = (f, ms, ...of) => real(f, Math.min(ms, 100), ...of)") // ten seconds
	b.show("/ui/services/default/web")
	b.see("h1", "healthy")
	r := <-held
	two.stop()
	b.see("h1", "degraded")
	if r.Context().Err() != nil {
		t.Fatal("the page has not waited for the answer")
	}
	step <- struct{}{} // an answer from before
	<-held             // the page asks again, so it has dealt with that one
	if h1 := b.text("h1"); !strings.Contains(h1, "degraded") {
		t.Errorf("the page shows %q after an answer from before the change", h1)
	}
	step <- struct{}{}
	b.quiet()
}
