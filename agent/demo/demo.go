// Package demo has what `ironvip agent --demo` adds to an ordinary agent: a temporary configuration with two
// services, three small web servers as backends, and a text that says how to use them.
//
// The agent runs with that configuration as with any other, on addresses of the loopback. It removes
// what it has in the kernel, and Close removes the rest.
package demo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/vip"
)

// Demo is a configuration and its backends. Create one with New, and end it with Close.
type Demo struct {
	Dir      string // of the configuration
	servers  []*http.Server
	backends []netip.AddrPort
}

const config = `# The configuration of "ironvip agent --demo". It goes away with the demo.
[node]
state_dir = "{{.Dir}}/state"
[api]
socket = "{{.Dir}}/ironvip.sock"
listen = "{{.Listen}}"
insecure_loopback = true
[announce]
socket = "{{.Dir}}/announcer.sock"
[dataplane]
mode = "{{.Mode}}"
device = "ironvip-demo"
[dns]
listen = [{{with .DNS}}"{{.}}"{{end}}]
[log]
level = "warn"
[[pool]]
name = "demo"
cidrs = ["127.96.0.0/24"]
`

const services = `# Change this file and save it: the agent follows. Without vips, the pool assigns an address.
[[service]]
name = "web"
vips = ["127.96.0.17"] # as in the README
scheduler = "rr"
ports = [ { name = "http", port = {{.Port}}, target_port = {{(index .Backends 0).Port}} } ]
backends = [ {{range .Backends}}{ address = "{{.Addr}}", port = {{.Port}} }, {{end}}]

[[service]]
name = "canary"
vips = ["127.96.0.18"]
scheduler = "wrr"
ports = [ { name = "http", port = {{.Port}}, target_port = {{(index .Backends 0).Port}} } ]
backends = [
  { address = "{{(index .Backends 0).Addr}}", port = {{(index .Backends 0).Port}}, weight = 3 },
  { address = "{{(index .Backends 1).Addr}}", port = {{(index .Backends 1).Port}}, weight = 1 },
]
`

// New starts the backends and writes the configuration.
func New(ctx context.Context) (*Demo, error) {
	dir, err := os.MkdirTemp("", "ironvip-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the demo: %w", err)
	}
	d := &Demo{Dir: dir}
	for i := range 3 {
		if err == nil {
			err = d.serve(ctx, fmt.Sprintf("demo-%d", i+1))
		}
	}
	if err == nil {
		err = d.write()
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// serve starts one backend that answers every request with its name.
func (d *Demo) serve(ctx context.Context, name string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("start the demo's backend %s: %w", name, err)
	}
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	s := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			// One answer per connection, so that each curl and each click is balanced.
			w.Header().Set("Connection", "close")
			fmt.Fprintf(w, "%s at %s answers\n", name, addr)
		}),
	}
	d.servers, d.backends = append(d.servers, s), append(d.backends, addr)
	go s.Serve(l) //nolint:errcheck // returns ErrServerClosed after Close
	return nil
}

// mode returns the dataplane of a demo. It is never nft: the clients and backends are on the loopback.
func mode() string {
	if ipvs.Err(ipvs.Check(false)) == nil {
		return configs.ModeIPVS
	}
	return configs.ModeProxy
}

func (d *Demo) write() error {
	data := struct {
		Dir, Listen, DNS, Mode string
		Port                   int
		Backends               []netip.AddrPort
	}{d.Dir, free("127.0.0.1:7480", false), free("127.0.0.1:8653", true), mode(), port(), d.backends}
	for name, text := range map[string]string{"ironvip.toml": config, "services.d/demo.toml": services} {
		path := filepath.Join(d.Dir, name)
		var out strings.Builder
		err := template.Must(template.New(name).Parse(text)).Execute(&out, data)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, []byte(out.String()), 0o644)
		}
		if err != nil {
			return fmt.Errorf("write the demo's %s: %w", name, err)
		}
	}
	return nil
}

// Close ends the backends and removes the configuration.
func (d *Demo) Close() {
	for _, s := range d.servers {
		s.Close()
	}
	os.RemoveAll(d.Dir)
}

// port returns 80 if this process can listen there, so that the printed URLs are short, else 8080.
func port() int {
	l, err := net.Listen("tcp", "127.96.0.17:80")
	if err != nil {
		return 8080
	}
	l.Close()
	return 80
}

// free returns an address as documented, or a free one if another agent uses that; "" if there is none. Both
// is for TCP and UDP.
func free(documented string, both bool) string {
	for _, addr := range []string{documented, "127.0.0.1:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		defer l.Close()
		if both {
			c, err := net.ListenPacket("udp", l.Addr().String())
			if err != nil {
				continue
			}
			defer c.Close()
		}
		return l.Addr().String()
	}
	return ""
}

// Running is the agent that runs with a demo's configuration.
type Running struct {
	Version           string
	Dataplane, Reason string
	Config            *configs.Config
	Frontends         iter.Seq2[vip.FrontendKey, vip.Frontend]
}

// Greet prints how to use a demo.
func (d *Demo) Greet(a Running, out io.Writer) {
	fmt.Fprintf(out, "ironvip %s demo: three backends, two services, everything on this host's loopback\n", a.Version)
	fmt.Fprintf(out, "dataplane  %s (%s)\n", a.Dataplane, a.Reason)
	fmt.Fprintf(out, "API        http://%s/v1/services\n", a.Config.API.Listen)
	fmt.Fprintf(out, "dashboard  http://%s/ui/\n", a.Config.API.Listen)
	fmt.Fprintf(out, "files      %s\n\n", d.Dir)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	var urls []string
	frontends := slices.SortedFunc(maps.Values(maps.Collect(a.Frontends)), func(x, y vip.Frontend) int {
		return cmp.Or(len(x.Service.Name)-len(y.Service.Name), vip.CompareFrontendKeys(x.Key, y.Key))
	})
	for _, f := range frontends {
		host := f.Key.AddrPort().String()
		if f.Key.Port == 80 {
			host = f.Key.Addr.String()
		}
		urls = append(urls, "http://"+host+"/")
		fmt.Fprintf(w, "%s\t%s\t%s\t%d backends\n", f.Service, f.Key, f.Scheduler, len(f.Backends))
	}
	w.Flush()
	if len(urls) > 0 {
		fmt.Fprintf(out, "\nPaste this: every backend answers in turn.\n\n    for i in 1 2 3; do curl -s %s; done\n", urls[0])
	}
	if dns := a.Config.DNS; dns.On() && len(urls) > 0 {
		fmt.Fprintf(out, "\nNames resolve to the VIPs (dig is in the package bind9-dnsutils):\n\n    dig @%s -p %d +short %s.%s\n",
			dns.Listen[0].Addr(), dns.Listen[0].Port(), frontends[0].Service.Name, dns.Domain)
	}
	self, err := os.Executable()
	if err != nil {
		self = "ironvip"
	}
	fmt.Fprintf(out, "\nAnd this, to look inside; then change %s/services.d/demo.toml and watch.\n\n    export IRONVIP_ADDR=http://%s\n    %s status\n    %s service list\n\nCtrl-C ends it and leaves nothing behind.\n",
		d.Dir, a.Config.API.Listen, self, self)
}
