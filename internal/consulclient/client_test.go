package consulclient

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/answer"
	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"

	"github.com/hashicorp/consul/api"
)

// client returns a client that is closed when the test ends.
func client(t *testing.T, c Config) *api.Client {
	t.Helper()
	out, closeIdle, err := New(c)
	must.Succeed(t, err)
	t.Cleanup(closeIdle)
	return out
}

// ask sends a request and returns the answer, which is a string.
func ask(c *api.Client) (string, error) {
	var out string
	_, err := c.Raw().Query("/v1/test", &out, nil)
	return out, err
}

// echo answers with the properties of the request.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = fmt.Fprintf(w, "%q", fmt.Sprint(r.Proto, " token=", r.Header.Get("X-Consul-Token"), " ", r.URL.RawQuery, " ", len(r.TLS.PeerCertificates)))
})

var plain = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = fmt.Fprintf(w, "%q", r.Header.Get("X-Consul-Token")+" "+r.URL.RawQuery)
})

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestASocketAndWhomToAsk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "consul.sock")
	listener := must.Get(net.Listen("unix", path))(t)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: plain}}
	server.Start()
	defer server.Close()
	got, err := ask(client(t, Config{Address: "unix://" + path, Datacenter: "dc2", Namespace: "team", Partition: "p", Token: "secret"}))
	if got != "secret dc=dc2&ns=team&partition=p" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A rotated token is used without a new client. Nothing is sent without the configured token, or
// with a token of the environment.
func TestTokensAreThoseOfTheFile(t *testing.T) {
	t.Setenv("CONSUL_HTTP_TOKEN", "of the environment")
	t.Setenv("CONSUL_HTTP_TOKEN_FILE", "/nowhere")
	server := httptest.NewServer(plain)
	defer server.Close()
	if got, err := ask(client(t, Config{Address: server.URL})); got != " " || err != nil {
		t.Errorf("without a token: %q, %v", got, err)
	}
	path := filepath.Join(t.TempDir(), "token")
	file := &token{path: path}
	if _, err := file.get(); err == nil {
		t.Error("a file that isn't there is no error")
	}
	for _, text := range []string{"first", "second\n"} {
		write(t, path, text)
		if got, err := file.get(); got != strings.TrimSpace(text) || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	write(t, path, "\n")
	if _, err := file.get(); err == nil {
		t.Error("an empty file is no error")
	}
	write(t, path, "third")
	if got, err := ask(client(t, Config{Address: server.URL, Token: "not this", TokenFile: path})); got != "third " || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAnAnswerHasAnEndAndATokenIsNotForOthers(t *testing.T) {
	asked := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer other.Close()
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	if _, err := ask(client(t, Config{Address: server.URL, Token: "secret"})); err == nil || asked {
		t.Errorf("a redirect: %v, followed %v", err, asked)
	}
}

// An error without an end is cut off, and objects without an end are an error.
func TestAnswersWithoutAnEnd(t *testing.T) {
	status, unit := 0, ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "[")
		for part, err := []byte(strings.Repeat(unit, 10_000)), error(nil); err == nil; {
			_, err = w.Write(part)
		}
	}))
	defer server.Close()
	c := client(t, Config{Address: server.URL})
	status, unit = http.StatusInternalServerError, "broken "
	if _, err := ask(c); err == nil || len(err.Error()) > 100_000 || !strings.Contains(err.Error(), "broken") {
		t.Errorf("an error without an end: %.200s", fmt.Sprint(err))
	}
	status, unit = http.StatusOK, "{},"
	var out []struct{}
	if _, err := c.Raw().Query("/v1/test", &out, nil); !errors.Is(err, answer.ErrTooLarge) {
		t.Errorf("objects without an end: %v", err)
	}
}

// TLS uses HTTP/2, so a few connections hold thousands of requests. The files of the CA and of the
// client are read again.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(echo)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	c := client(t, Config{Address: server.URL, ServerName: "example.com", CAFile: ca, CertFile: cert, KeyFile: key, Token: "secret"})
	if _, err := ask(c); err == nil {
		t.Error("without its files")
	}
	stranger := authority.New(t)
	stranger.Client(t, "client").Write(t, cert, key)
	write(t, ca, "nothing")
	if _, err := ask(c); err == nil || !strings.Contains(err.Error(), ca) {
		t.Errorf("with a CA file of no certificates: %v", err)
	}
	stranger.WriteCert(t, ca)
	if _, err := ask(c); err == nil {
		t.Error("the server's certificate is another's")
	}
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	if got, err := ask(c); got != "HTTP/2.0 token=secret  1" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := ask(client(t, Config{Address: server.URL, ServerName: "elsewhere.example", CAFile: ca})); err == nil {
		t.Error("the server is not the one named")
	}
}

func TestBadAddresses(t *testing.T) {
	for _, address := range []string{"ftp://x:1", "unix://relative"} {
		_, _, err := New(Config{Address: address})
		expect.True(t, err != nil, "%s is taken", address)
	}
}

// An agent that refuses a connection answers before it receives a request. The client returns a
// distinct error.
func TestAnAgentThatIsBusy(t *testing.T) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	accept.Each(listener, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nContent-Length: 81\r\nConnection: close\r\n\r\n"+
			"Your IP is issuing too many concurrent connections, please rate limit your calls\n")
		_, _ = conn.Read(make([]byte, 4096)) // closing with unread data would be a reset, which loses the answer
	})
	if _, err := ask(client(t, Config{Address: listener.Addr().String()})); !errors.Is(err, ErrBusy) {
		t.Errorf("%v", err)
	}
}
