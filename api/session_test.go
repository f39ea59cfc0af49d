package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/api/tokens"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

const sameOrigin = "Sec-Fetch-Site: same-origin"

// sessions returns an agent that only tokens open, and a function that creates one.
func sessions(t *testing.T) (r *rig, create func(name string, role access.Role, expires time.Time) string) {
	r = newRig(t, withTokens)
	return r, func(name string, role access.Role, expires time.Time) string {
		t.Helper()
		return r.create(tokens.Token{Name: name, Grant: access.Grant{Role: role}, Expires: expires})
	}
}

// login returns the Cookie header of a new session.
func (r *rig) login(token string) string {
	r.t.Helper()
	a := r.ask("POST", v1.PathSession, `{"token":"`+token+`"}`, sameOrigin)
	if a.StatusCode != http.StatusOK || len(a.Cookies()) != 1 {
		r.t.Fatalf("login: %s %v %s", a.Status, a.Header, a.body)
	}
	return "Cookie: " + a.Cookies()[0].Name + "=" + a.Cookies()[0].Value
}

func TestSession(t *testing.T) {
	r, create := sessions(t)
	token := create("ann", access.Operator, time.Time{})
	a := r.ask("POST", v1.PathSession, `{"token":"`+token+`"}`, sameOrigin)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(r.web.URL, "http://"))
	if want := "ironvip-" + port + "=" + token + "; Path=/v1/; HttpOnly; SameSite=Strict"; a.Header.Get("Set-Cookie") != want {
		t.Errorf("the cookie is %q, want %q", a.Header.Get("Set-Cookie"), want)
	}
	if strings.Contains(string(a.body), token) || !strings.Contains(string(a.body), `"name":"token ann","role":"operator"`) {
		t.Errorf("the answer is %s", a.body)
	}
	cookie := r.login(token)
	if who := decode[v1.Whoami](r, "GET", v1.PathWhoami, "", cookie); who.Name != "token ann" {
		t.Errorf("the caller is %+v", who)
	}
	// A cookie of another port is of another agent, and a token in a header counts before a cookie.
	if a := r.ask("GET", v1.PathWhoami, "", "Cookie: ironvip-1="+token); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("the cookie of another port: %s", a.Status)
	}
	if who := decode[v1.Whoami](r, "GET", v1.PathWhoami, "", cookie, "Authorization: Bearer "+create("bob", access.Viewer, time.Time{})); who.Name != "token bob" {
		t.Errorf("with a token and a cookie the caller is %+v", who)
	}
	out := r.ask("DELETE", v1.PathSession, "", cookie, sameOrigin)
	if want := "ironvip-" + port + "=; Path=/v1/; Max-Age=0; HttpOnly; SameSite=Strict"; out.StatusCode != http.StatusNoContent || out.Header.Get("Set-Cookie") != want {
		t.Errorf("logout: %s %q", out.Status, out.Header.Get("Set-Cookie"))
	}
	expect.False(t, strings.Contains(r.log.String(), token), "the log has the token")
}

// A browser sends the cookie with requests that other pages make it send. They change nothing.
func TestSessionNeedsItsOrigin(t *testing.T) {
	r, create := sessions(t)
	token := create("ann", access.Operator, time.Time{})
	cookie := r.login(token)
	own, host := "Origin: "+r.web.URL, strings.TrimPrefix(r.web.URL, "http://")
	for _, c := range []struct {
		name    string
		headers []string
		want    int
	}{
		{"own page", []string{sameOrigin}, 200},
		{"own page, with its origin", []string{sameOrigin, own}, 200},
		{"own page of a browser without Sec-Fetch-Site", []string{own}, 200},
		{"no origin", nil, 403},
		{"another site", []string{"Sec-Fetch-Site: cross-site"}, 403},
		{"another site that is served as this host", []string{"Sec-Fetch-Site: cross-site", own}, 403},
		{"another port of this host", []string{"Sec-Fetch-Site: same-site"}, 403},
		{"an address that the user typed", []string{"Sec-Fetch-Site: none"}, 403},
		{"another origin", []string{"Origin: http://evil.example"}, 403},
		{"this host with TLS, which it does not have", []string{"Origin: https://" + host}, 403},
		{"this host behind a proxy that ends TLS", []string{"Origin: https://" + host, "X-Forwarded-Proto: https"}, 200},
		{"behind a proxy that ends TLS, a page without it", []string{own, "X-Forwarded-Proto: https"}, 403},
		{"another origin, but the browser is wrong", []string{sameOrigin, "Origin: http://evil.example"}, 403},
		{"no page", []string{"Origin: null"}, 403},
		{"two origins", []string{own, "Origin: http://evil.example"}, 403},
	} {
		a := r.ask("PUT", webPath, webBody("10.0.0.1"), append(c.headers, cookie)...)
		if got := min(a.StatusCode, 403); got != c.want && (c.want != 200 || got != 201) {
			t.Errorf("%s: %s %s", c.name, a.Status, a.body)
		}
		if a.StatusCode == 403 && a.problem(t).Code != v1.CodeForbiddenOrigin {
			t.Errorf("%s: %s", c.name, a.body)
		}
		headers := strings.Join(c.headers, " ")
		foreign := c.want == 403 && strings.Contains(headers, host) || strings.Contains(headers, "cross-site") || strings.Contains(headers, "same-site") || strings.Contains(headers, "evil") || c.name == "no page"
		read := r.ask("GET", webPath, "", append(c.headers, cookie)...)
		expect.Equal(t, read.StatusCode == 403, foreign, "%s: a read is %s", c.name, read.Status)
		login := r.ask("POST", v1.PathSession, `{"token":"`+token+`"}`, c.headers...)
		expect.Equal(t, login.StatusCode, c.want, "%s: login is %s", c.name, login.Status)
		out := r.ask("DELETE", v1.PathSession, "", append(c.headers, cookie)...)
		expect.Equal(t, out.StatusCode == 204, c.want == 200, "%s: logout is %s", c.name, out.Status)
	}
	if a := r.ask("PUT", webPath, webBody("10.0.0.1"), "Authorization: Bearer "+token); a.StatusCode != 200 {
		t.Errorf("a program needs no origin: %s", a.Status)
	}
	if a := r.ask("GET", webPath, "", cookie, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"); a.StatusCode != 200 {
		t.Errorf("a link to the API: %s", a.Status)
	}
}

// Requests that last end with the token of their caller: streams, one that waits for a change, and a write that waits for
// the dataplane, whose answer says that it is stored.
func TestLastingRequestsEndWithTheirToken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, withTokens, func(d *Deps) {
			d.Services.DrainsKept = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } // a write waits for this, too
		})
		bearer := "Authorization: Bearer " + r.create(tokens.Token{Name: "deploy", Grant: access.Grant{Role: access.Operator}})
		ended := make(chan string, 4)
		for _, c := range []struct{ method, path, body, header string }{
			{"GET", v1.PathServices + "?wait=5m&revision=1000000", "", "Accept: */*"}, {"GET", v1.PathEvents, "", "Accept: application/x-ndjson"},
			{"GET", v1.PathWatchServices, "", "Accept: */*"}, {"PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=300"},
		} {
			go func() {
				resp := r.send(c.method, c.path, c.body, bearer, c.header)
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				ended <- fmt.Sprintf("%s %d %v %s", c.method, resp.StatusCode, err, body)
			}()
		}
		time.Sleep(10 * time.Second)
		expect.AtMost(t, len(ended), 0, "ended before")
		must.Succeed(t, r.deps.Tokens.Revoke(t.Context(), "deploy"))
		time.Sleep(2 * time.Second)
		must.Equal(t, len(ended), 4, "of 4 ended within 2 s")
		refused := 0
		for range 4 {
			text := <-ended
			if strings.Contains(text, "401 <nil>") {
				refused++
			}
			if strings.HasPrefix(text, "PUT ") && !strings.Contains(text, "stored; the caller is no longer permitted") {
				t.Errorf("a write: %s", text)
			}
		}
		expect.Equal(t, refused, 2, "were refused, want those that waited")
	})
}

// A write with a body that is still arriving when its token is revoked, or loses its role, changes nothing.
func TestBodyOutlivesItsToken(t *testing.T) {
	for _, c := range []struct{ method, path, body, code string }{
		{"PUT", webPath, webBody("10.0.0.1"), v1.CodeUnauthorized}, {"PUT", webPath, webBody("10.0.0.1"), v1.CodeForbidden},
		{"PUT", v1.TokenPath("evil"), `{"role":"admin"}`, v1.CodeUnauthorized},
		{"POST", v1.PathApply, `{"services":[` + strings.Replace(webBody("10.0.0.1"), "{", `{"name":"web",`, 1) + `]}`, v1.CodeUnauthorized},
	} {
		var demoted atomic.Bool
		inRig(t, func(t *testing.T, r *rig) {
			secret := r.create(tokens.Token{Name: "deploy", Grant: access.Grant{Role: access.Admin}})
			conn := must.Get(r.pipes.dial(t.Context(), "", ""))(t)
			defer conn.Close()
			fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n{", c.method, c.path, secret, len(c.body))
			synctest.Wait()
			if c.code == v1.CodeForbidden {
				demoted.Store(true)
			} else if err := r.deps.Tokens.Revoke(t.Context(), "deploy"); err != nil {
				t.Fatal(err)
			}
			io.WriteString(conn, c.body[1:])
			resp := must.Get(http.ReadResponse(bufio.NewReader(conn), httptest.NewRequest(c.method, c.path, nil)))(t)
			body, _ := io.ReadAll(resp.Body)
			expect.Equal(t, (answer{resp, body}).problem(t).Code, c.code, "%s %s: %s", c.method, c.path, body)
			_, stored := r.server.services.Service(vip.ServiceKey{Namespace: "default", Name: "web"})
			expect.False(t, stored, "%s %s: the service is stored", c.method, c.path)
			if slices.ContainsFunc(r.deps.Tokens.List(), func(t tokens.Token) bool { return t.Name == "evil" }) {
				t.Error("the token is created")
			}
		}, func(d *Deps) {
			d.Policy = func() *access.Policy {
				return &access.Policy{Tokens: func(token string) (access.Caller, error) {
					caller, err := d.Tokens.Caller(token)
					if demoted.Load() {
						caller.Role = access.Viewer
					}
					return caller, err
				}}
			}
		})
	}
}

// A session may do what its token may, and ends with it. The answer then removes the cookie.
func TestSessionEndsWithItsToken(t *testing.T) { bubble.Test(t, sessionEndsWithItsToken) }

func sessionEndsWithItsToken(t *testing.T) {
	r, create := sessions(t)
	viewer := r.login(create("viewer", access.Viewer, time.Time{}))
	if a := r.ask("PUT", webPath, webBody("10.0.0.1"), viewer, sameOrigin); a.StatusCode != http.StatusForbidden || a.problem(t).Code != v1.CodeForbidden {
		t.Errorf("a write of a viewer: %s", a.Status)
	}
	must.Succeed(t, r.deps.Tokens.Revoke(t.Context(), "viewer"))
	a := r.ask("GET", v1.PathServices, "", viewer)
	if a.StatusCode != http.StatusUnauthorized || !strings.Contains(a.Header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("a revoked token: %s %v", a.Status, a.Header)
	}
	expires := time.Now().Add(5 * time.Second)
	brief := r.login(create("brief", access.Viewer, expires))
	wait.Until(t, "the token has expired", func() bool {
		return r.ask("GET", v1.PathServices, "", brief).StatusCode == http.StatusUnauthorized
	})
	expect.False(t, time.Now().Before(expires), "the session ended before its token")
	for body, want := range map[string]int{`{"token":"ironvip_wrong"}`: 401, `{"token":""}`: 422, `{}`: 422, `{"token":"x","user":"y"}`: 422, `token`: 400} {
		a := r.ask("POST", v1.PathSession, body, sameOrigin)
		if a.StatusCode != want || a.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %s %v", body, a.Status, a.Header)
		}
	}
}
