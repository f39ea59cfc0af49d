package probe

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// serve runs an HTTP server, with TLS if secure is not nil.
func serve(t testing.TB, host string, secure *tls.Config, h http.HandlerFunc) netip.AddrPort {
	t.Helper()
	l := must.Get(net.Listen("tcp", net.JoinHostPort(host, "0")))(t)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h, ErrorLog: quiet}, TLS: secure, EnableHTTP2: true}
	if secure != nil {
		s.StartTLS()
	} else {
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
	}
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// raw runs a server that reads a request's header and writes a text, part by part; in a part, "%s"
// hangs and "%1" writes one byte each 20 ms.
func raw(t testing.TB, host string, parts ...string) netip.AddrPort {
	t.Helper()
	return listen(t, host, func(c net.Conn) {
		r := bufio.NewReader(c)
		for line := ""; line != "\r\n"; {
			var err error
			if line, err = r.ReadString('\n'); err != nil {
				return
			}
		}
		for _, part := range parts {
			switch part {
			case "%hang":
				io.Copy(io.Discard, c)
			case "%flood":
				chunk := []byte(strings.Repeat("x", 1<<16))
				for n := 0; n < 1<<30; n += len(chunk) {
					if _, err := c.Write(chunk); err != nil {
						return
					}
				}
			case "%slow":
				for {
					if _, err := io.WriteString(c, "x"); err != nil {
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
			default:
				io.WriteString(c, part)
			}
		}
	})
}

func TestHTTP(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		t.Parallel()
		server := serve(t, f.host, nil, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/":
				fmt.Fprintf(w, "%s %s %s close=%t agent=%s", r.Method, r.Host, r.URL.RawQuery, r.Close, r.UserAgent())
			case "/hints":
				w.WriteHeader(http.StatusEarlyHints)
				w.WriteHeader(http.StatusNoContent)
			case "/loop":
				http.Redirect(w, r, "/loop", http.StatusFound)
			default:
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		get := func(path, status, body string) vip.HealthCheck {
			return vip.HealthCheck{Type: vip.CheckHTTP, Path: path, Status: status, Body: body}
		}
		const head = "HTTP/1.1 200 OK\r\n"
		run(t, Options{}, []expectation{
			{"ok", server, get("", "", ""), OK, ""},
			{"request", server, get("/?a=b%20c", "200", "GET "+server.String()+" a=b%20c close=true agent=ironvip-health"), OK, ""},
			{"host", server, vip.HealthCheck{Type: vip.CheckHTTP, Host: "web.example", Body: "GET web.example  "}, OK, ""},
			{"head", server, vip.HealthCheck{Type: vip.CheckHTTP, Method: "HEAD"}, OK, ""},
			{"other body", server, get("/", "", "ready"), BadAnswer, `does not contain "ready"`},
			{"other status", server, get("/down", "", ""), BadStatus, "status 503, want 200-399"},
			{"expected status", server, get("/down", "200,500-503", ""), OK, ""},
			{"redirect passes", server, get("/loop", "", ""), OK, ""},
			{"redirect is not followed", server, get("/loop", "200", ""), BadStatus, "status 302, want 200"},
			{"interim responses", server, get("/hints", "204", ""), OK, ""},
			{"refused", closedPort(t, f.host), get("", "", ""), Refused, "connect: connection refused"},
			{"no connection", fullBacklog(t, f.host), get("", "", ""), TimedOut, "connect: not complete within 500ms"},
			{"no answer", raw(t, f.host, "%hang"), get("", "", ""), TimedOut, "answer: not complete within 500ms"},
			{"slow header", raw(t, f.host, head, "X: ", "%slow"), get("", "", ""), TimedOut, "answer: not complete"},
			{"slow body", raw(t, f.host, head+"\r\n", "%slow"), get("", "", "y"), TimedOut, "body: not complete"},
			{"slow body is not read", raw(t, f.host, head+"\r\n", "%slow"), get("", "", ""), OK, ""},
			{"text in a body without end", raw(t, f.host, head+"\r\nrea", "dy", "%hang"), get("", "", "ready"), OK, ""},
			{"body of a gigabyte", raw(t, f.host, head+"\r\n", "%flood"), get("", "", "y"), BadAnswer, "the first 64 KiB"},
			{"header of a gigabyte", raw(t, f.host, head, "X: ", "%flood"), get("", "", ""), BadAnswer, "more than 64 KiB"},
			{"interim responses without end", raw(t, f.host, strings.Repeat("HTTP/1.1 103 Early\r\n\r\n", 1000)), get("", "", ""), BadAnswer, "interim"},
			{"closed", listen(t, f.host, func(c net.Conn) { bufio.NewReader(c).ReadString('\n') }), get("", "", ""), Reset, ""},
			{"closed in the header", raw(t, f.host, head), get("", "", ""), Reset, "closed"},
			{"not HTTP", raw(t, f.host, "220 mail ready\r\n"), get("", "", ""), BadAnswer, "malformed"},
			{"TLS server", serve(t, f.host, &tls.Config{}, func(http.ResponseWriter, *http.Request) {}), get("", "200", ""), BadStatus, "status 400"},
		})
	})
}

func TestHTTPS(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		t.Parallel()
		ca, other := authority.New(t), authority.New(t)
		ip := []netip.Addr{netip.MustParseAddr(f.host)}
		config := func(p authority.Pair) *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{p.Cert.Raw}, PrivateKey: p.Key}}}
		}
		ok := func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", r.Proto, r.TLS.ServerName) }
		good := serve(t, f.host, config(ca.Server(t, ip, "web.example")), ok)
		roots := x509.NewCertPool()
		roots.AddCert(ca.Cert)
		check := func(host, body string) vip.HealthCheck {
			return vip.HealthCheck{Type: vip.CheckHTTPS, Host: host, Body: body}
		}
		skip := check("", "HTTP/1.1")
		skip.SkipVerify = true
		run(t, Options{RootCAs: roots}, []expectation{
			{"address", good, check("", ""), OK, ""},
			{"name", good, check("web.example", "HTTP/1.1 web.example"), OK, ""},
			{"name and port", good, check("web.example:8443", "HTTP/1.1 web.example"), OK, ""},
			{"other name", good, check("db.example", ""), BadTLS, "not db.example"},
			{"other authority", serve(t, f.host, config(other.Server(t, ip)), ok), check("", ""), BadTLS, "unknown authority"},
			{"expired", serve(t, f.host, config(ca.Valid(time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)).Server(t, ip)), ok), check("", ""), BadTLS, "expired"},
			{"other authority, not verified", serve(t, f.host, config(other.Server(t, nil)), ok), skip, OK, ""},
			{"plain server", serve(t, f.host, nil, ok), check("", ""), BadTLS, "TLS handshake: "},
			{"old TLS", serve(t, f.host, &tls.Config{MaxVersion: tls.VersionTLS11}, ok), check("", ""), BadTLS, "protocol version"},
			{"silent server", listen(t, f.host, func(c net.Conn) { io.Copy(io.Discard, c) }), check("", ""), TimedOut, "TLS handshake: not complete within 500ms"},
			{"server that closes", listen(t, f.host, func(c net.Conn) { c.Read(make([]byte, 1<<14)) }), check("", ""), Reset, ""},
		})
	})
}

func FuzzExpectedStatus(f *testing.F) {
	f.Add("200", 200)
	f.Add("200-299,404", 404)
	f.Fuzz(func(t *testing.T, list string, code int) {
		ranges, err := spec.ParseStatus(list)
		if err != nil {
			return
		}
		if expected(ranges, code) && (code < 100 || code > 599) {
			t.Errorf("%q contains %d", list, code)
		}
		if single, err := spec.ParseStatus(list + ",200"); err != nil || !expected(single, 200) {
			t.Errorf("%q and 200: %v, %v", list, single, err)
		}
	})
}

// The answer of a server is judged, whatever it is, and no more of it is read than the limits allow.
func FuzzHTTPAnswer(f *testing.F) {
	for _, seed := range []string{"", "HTTP/1.1 200 OK\r\n\r\nready", "HTTP/1.1 100 \r\n\r\nHTTP/1.1 204 \r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nready\r\n0\r\n\r\n",
		"HTTP/1.0 200\r\nContent-Length: 99999999999\r\n\r\nrea", "HTTP/9.9 999 x\n\n", strings.Repeat("HTTP/1.1 103 \r\n\r\n", 9), "SSH-2.0-x\r\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limited := &io.LimitedReader{R: strings.NewReader(text), N: maxHeader}
		answer, err := readAnswer(bufio.NewReader(limited), &http.Request{Method: "GET"})
		if err != nil {
			return
		}
		defer answer.Body.Close()
		if answer.StatusCode < 0 || answer.StatusCode > 999 {
			t.Errorf("status %d", answer.StatusCode)
		}
		limited.N = 2 * maxBody
		if outcome, reason := findInBody(answer.Body, &vip.HealthCheck{Body: "ready"}); (outcome == OK) != (reason == "") {
			t.Errorf("%v: %q", outcome, reason)
		} else if outcome == OK && !strings.Contains(text, "r") {
			t.Error("found a text that isn't there")
		}
	})
}
