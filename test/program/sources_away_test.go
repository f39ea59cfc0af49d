//go:build system

package program

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
)

// origin is a server that has the backends of the service web. Start returns the function that stops it.
type origin struct {
	source string // its [[source]]
	start  func(backends ...*backend) (stop func())
}

// document is an HTTP server with a document.
func document(t *testing.T) origin {
	at := fmt.Sprint("127.0.0.1:", freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))[1])
	return origin{fmt.Sprintf("[[source]]\ntype = \"http\"\nurl = \"http://%s/services\"\ninterval = \"1s\"\n", at), func(backends ...*backend) func() {
		var list []string
		for _, b := range backends {
			list = append(list, b.json())
		}
		text := fmt.Sprintf(`{"services": [{"name": "web", "scheduler": "rr", "ports": [{"port": 8080}], "backends": [%s]}]}`, strings.Join(list, ","))
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Etag", fmt.Sprintf(`"%d"`, len(list)))
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
		})}
		listener := must.Get(net.Listen("tcp", at))(t)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { server.Close() })
		return func() { server.Close() }
	}}
}

// records is CoreDNS with SRV records.
func records(t *testing.T) origin {
	dir, port := t.TempDir(), freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))[1]
	conf, zone := filepath.Join(dir, "Corefile"), filepath.Join(dir, "zone")
	must.Succeed(t, os.WriteFile(conf, fmt.Appendf(nil, "example.com:%d {\n  file %s\n}\n", port, zone), 0o600))
	server := process.New(need.Server(t, "coredns"), filepath.Join(dir, "log"), nil, "-conf", conf)
	t.Cleanup(server.Kill)
	return origin{fmt.Sprintf("[[source]]\ntype = \"dns\"\nservers = [\"127.0.0.1:%d\"]\ninterval = \"1s\"\n[[source.service]]\nname = \"web\"\nscheduler = \"rr\"\nports = [{ port = 8080 }]\nsrv = \"_http._tcp.example.com\"\n", port), func(backends ...*backend) func() {
		text := "$ORIGIN example.com.\n@ 1 IN SOA ns hostmaster 1 1 1 1 1\n@ 1 IN NS ns\nns 1 IN A 127.0.0.1\nhost 1 IN A 127.0.0.1\n"
		for _, b := range backends {
			text += fmt.Sprintf("_http._tcp 1 IN SRV 1 1 %d host\n", b.port)
		}
		must.Succeed(t, os.WriteFile(zone, []byte(text), 0o600))
		must.Succeed(t, server.Start())
		return server.Kill
	}}
}

// A service of an HTTP server or of DNS gets a VIP. While the server is away, its traffic continues, also after a restart of the
// agent. When the server is back, its changes take effect.
func TestServersOfServicesAway(t *testing.T) {
	for name, new := range map[string]func(*testing.T) origin{"http": document, "dns": records} {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			o, a, b := new(t), newBackend(t, "a"), newBackend(t, "b")
			h := newHost(t)
			h.config(o.source)
			stop := o.start(a)
			h.start()
			web := h.vip("web")
			h.serves(web+":8080", "a")
			h.keeps("cache "+name, "default/web", func(json string) bool { return strings.Contains(json, fmt.Sprint(a.port)) })
			stop()
			stale := func() error {
				if out := h.cli("source", "list").stdout; !strings.Contains(out, "refused") {
					return errors.New(out)
				}
				return nil
			}
			h.eventually("the source is stale", stale)
			h.serves(web+":8080", "a")
			h.kill()
			h.start()
			h.eventually("the source is stale", stale)
			if again := h.vip("web"); again != web {
				t.Errorf("web moved from %s to %s", web, again)
			}
			h.serves(web+":8080", "a")
			o.start(a, b)
			h.serves(web+":8080", "a", "b")
		})
	}
}
