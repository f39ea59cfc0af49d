package dashboard

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// gate serves a gate before an agent, and returns the gate, its address, and a client that follows no
// redirect and keeps no cookies.
func gate(t *testing.T, agent http.HandlerFunc) (g *Gate, at string, browser *http.Client) {
	t.Helper()
	behind := httptest.NewServer(agent)
	t.Cleanup(behind.Close)
	c := must.Get(client.New(behind.URL, client.Options{Token: "ironvip_own"}))(t)
	t.Cleanup(c.Close)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.ServeHTTP(w, r) }))
	t.Cleanup(front.Close)
	addr := netip.MustParseAddrPort(strings.TrimPrefix(front.URL, "http://"))
	g = New(addr, c)
	browser = front.Client()
	browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return g, front.URL, browser
}

// ask returns the status and the body of a response; headers are "Name: value".
func ask(t *testing.T, c *http.Client, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, url, nil))(t)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		}
		r.Header.Set(name, value)
	}
	resp := must.Get(c.Do(r))(t)
	defer resp.Body.Close()
	body := must.Get(io.ReadAll(resp.Body))(t)
	return resp, string(body)
}

func TestURLWorksOnce(t *testing.T) {
	g, at, browser := gate(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "agent ", r.URL.Path) })
	url := g.URL()
	must.True(t, strings.HasPrefix(url, at+"/ui/?once="), url)
	for _, path := range []string{"/ui/?once=wrong", "/v1/status", strings.TrimPrefix(url, at) + "x"} {
		if r, body := ask(t, browser, "GET", at+path); r.StatusCode != http.StatusForbidden || strings.Contains(body, "agent /") {
			t.Errorf("%s without a key: %s %s", path, r.Status, body)
		}
	}
	if _, body := ask(t, browser, "GET", at+"/ui/services"); body != "agent /ui/services" {
		t.Errorf("a page without a key: %s", body)
	}
	if r, _ := ask(t, browser, "GET", url, "Host: evil.example"); r.StatusCode != http.StatusForbidden {
		t.Errorf("the URL under another name: %s", r.Status)
	}
	if r, _ := ask(t, browser, "HEAD", url); r.StatusCode != http.StatusForbidden {
		t.Errorf("HEAD of the URL: %s", r.Status)
	}
	first, _ := ask(t, browser, "GET", url)
	key, has := strings.CutPrefix(first.Header.Get("Location"), "/ui/#key=")
	if first.StatusCode != http.StatusSeeOther || !has || len(key) < 40 || strings.Contains(url, key) || len(first.Cookies()) > 0 {
		t.Fatalf("the URL: %s %v", first.Status, first.Header)
	}
	if again, _ := ask(t, browser, "GET", url); again.StatusCode != http.StatusForbidden {
		t.Errorf("the URL a second time, from another browser: %s", again.Status)
	}
	header := KeyHeader + ": " + key
	if _, body := ask(t, browser, "GET", at+"/v1/services", header); body != "agent /v1/services" {
		t.Errorf("the API: %s", body)
	}
	if r, _ := ask(t, browser, "GET", at+"/v1/services", header+"x"); r.StatusCode != http.StatusForbidden {
		t.Errorf("another key: %s", r.Status)
	}
	for _, path := range []string{"/", "/metrics", "/openapi.json", "/ui/session", "/ui/%73ession"} {
		if r, body := ask(t, browser, "POST", at+path, header, "Sec-Fetch-Site: same-origin"); r.StatusCode != http.StatusNotFound || strings.Contains(body, "agent /") {
			t.Errorf("%s: %s %s", path, r.Status, body)
		}
	}
}

// login returns the header with the key of a browser that has opened the URL.
func login(t *testing.T, g *Gate, browser *http.Client) string {
	t.Helper()
	r, _ := ask(t, browser, "GET", g.URL())
	key, has := strings.CutPrefix(r.Header.Get("Location"), "/ui/#key=")
	if !has {
		t.Fatal(r.Status)
	}
	return KeyHeader + ": " + key
}

// A write needs its origin, and nothing of the browser reaches the agent but the request.
func TestRequestsAreThoseOfTheProcess(t *testing.T) {
	var got http.Header
	var host string
	g, at, browser := gate(t, func(w http.ResponseWriter, r *http.Request) { got, host = r.Header, r.Host })
	key := login(t, g, browser)
	for _, headers := range [][]string{{}, {"Sec-Fetch-Site: cross-site"}, {"Sec-Fetch-Site: same-site"}, {"Origin: http://evil.example"}, {"Origin: null"}} {
		if r, _ := ask(t, browser, "PUT", at+"/v1/services/default/web", append(headers, key)...); r.StatusCode != http.StatusForbidden {
			t.Errorf("%v: %s", headers, r.Status)
		}
	}
	for _, name := range []string{"evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""} {
		if r, _ := ask(t, browser, "GET", at+"/v1/services", key, "Host: "+name); name != "" && r.StatusCode != http.StatusForbidden {
			t.Errorf("host %q: %s", name, r.Status)
		}
	}
	got = nil
	r, _ := ask(t, browser, "PUT", at+"/v1/services/default/web", key, "Sec-Fetch-Site: same-origin", "Origin: "+at, "Referer: "+at+"/ui/", "Cookie: other=1",
		"Authorization: Bearer ironvip_other", "X-Forwarded-For: 192.0.2.1", "Content-Type: application/json", "Host: localhost:9000")
	if r.StatusCode != http.StatusOK || got == nil {
		t.Fatal(r.Status)
	}
	if got.Get("Authorization") != "Bearer ironvip_own" || got.Get("Content-Type") != "application/json" || strings.HasSuffix(host, ":9000") {
		t.Errorf("the agent got %v of %s", got, host)
	}
	for _, name := range []string{KeyHeader, "Cookie", "Origin", "Referer", "Sec-Fetch-Site", "X-Forwarded-For"} {
		expect.Equal(t, got.Get(name), "", "the agent got %s", name)
	}
}

// A line of a stream arrives while the stream is open.
func TestStreams(t *testing.T) {
	end := make(chan struct{})
	g, at, browser := gate(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: 1\n\n")
		http.NewResponseController(w).Flush()
		select {
		case <-end:
		case <-r.Context().Done():
		}
	})
	r := must.Get(http.NewRequestWithContext(t.Context(), "GET", at+"/v1/events", nil))(t)
	_, value, _ := strings.Cut(login(t, g, browser), ": ")
	r.Header.Set(KeyHeader, value)
	resp := must.Get(browser.Do(r))(t)
	defer resp.Body.Close()
	expect.Equal(t, must.Get(bufio.NewReader(resp.Body).ReadString('\n'))(t), "data: 1\n")
	close(end)
}

func TestAgentIsAway(t *testing.T) {
	c := must.Get(client.New("/nowhere/ironvip.sock", client.Options{}))(t)
	g := New(netip.MustParseAddrPort("127.0.0.1:1"), c)
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://127.0.0.1:1/v1/status", nil)
	r.Header.Set(KeyHeader, g.key)
	g.ServeHTTP(w, r)
	if w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), `"code":"unavailable"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
