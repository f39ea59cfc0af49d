package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/vip"
)

// demo is what `agent --demo` adds to an ordinary agent: a temporary configuration directory, and
// three small web servers as backends. The agent runs with that directory as with any other.
type demo struct {
	dir     string
	servers []*http.Server
	addrs   []string
}

const demoConfig = `# The configuration of "ironvip agent --demo". It goes away with the demo.
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

const demoServices = `# Change this file and save it: the agent follows. Without vips, the pool assigns an address.
[[service]]
name = "web"
vips = ["127.96.0.17"] # as in the README
scheduler = "rr"
ports = [ { name = "http", port = {{.Port}}, target_port = {{index .Ports 0}} } ]
backends = [ {{range .Addrs}}{ address = "{{host .}}", port = {{port .}} }, {{end}}]

[[service]]
name = "canary"
vips = ["127.96.0.18"]
scheduler = "wrr"
ports = [ { name = "http", port = {{.Port}}, target_port = {{index .Ports 0}} } ]
backends = [
  { address = "{{host (index .Addrs 0)}}", port = {{port (index .Addrs 0)}}, weight = 3 },
  { address = "{{host (index .Addrs 1)}}", port = {{port (index .Addrs 1)}}, weight = 1 },
]
`

// newDemo starts the backends and writes the configuration.
func newDemo(ctx context.Context) (*demo, error) {
	dir, err := os.MkdirTemp("", "ironvip-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the demo: %w", err)
	}
	d := &demo{dir: dir}
	for i := range 3 {
		if err := d.serve(ctx, fmt.Sprintf("demo-%d", i+1)); err != nil {
			d.close()
			return nil, err
		}
	}
	if err := d.write(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// serve starts one backend that answers every request with its name.
func (d *demo) serve(ctx context.Context, name string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("start the demo's backend %s: %w", name, err)
	}
	addr := l.Addr().String()
	s := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			// One answer per connection, so that each curl and each click is balanced.
			w.Header().Set("Connection", "close")
			fmt.Fprintf(w, "%s at %s answers\n", name, addr)
		}),
	}
	d.servers, d.addrs = append(d.servers, s), append(d.addrs, addr)
	go s.Serve(l) //nolint:errcheck // returns ErrServerClosed after close
	return nil
}

// demoMode returns the dataplane of a demo. It is never nft: the clients and backends are on the loopback.
func demoMode() string {
	if ipvs.Err(ipvs.Check(false)) == nil {
		return configs.ModeIPVS
	}
	return configs.ModeProxy
}

func (d *demo) write() error {
	data := struct {
		Dir, Listen, DNS, Mode string
		Port                   int
		Addrs                  []string
		Ports                  []string
	}{Dir: d.dir, Listen: freeAPIAddress(), DNS: freeDNSAddress(), Mode: demoMode(), Port: demoPort(), Addrs: d.addrs}
	for _, a := range d.addrs {
		_, port, _ := net.SplitHostPort(a)
		data.Ports = append(data.Ports, port)
	}
	half := func(i int) func(string) (string, error) {
		return func(a string) (string, error) {
			host, port, err := net.SplitHostPort(a)
			return []string{host, port}[i], err
		}
	}
	for name, text := range map[string]string{"ironvip.toml": demoConfig, "services.d/demo.toml": demoServices} {
		path := filepath.Join(d.dir, name)
		var out strings.Builder
		t := template.Must(template.New(name).Funcs(template.FuncMap{"host": half(0), "port": half(1)}).Parse(text))
		err := t.Execute(&out, data)
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

func (d *demo) close() {
	for _, s := range d.servers {
		s.Close()
	}
	os.RemoveAll(d.dir)
}

// demoPort returns 80 if this process may listen there, so that the printed URLs are short, else
// 8080.
func demoPort() int {
	if os.Geteuid() == 0 {
		return 80
	}
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil {
		if start, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && start <= 80 {
			return 80
		}
	}
	return 8080
}

// freeAPIAddress returns the API's usual address, or a free one if another agent uses that.
func freeAPIAddress() string {
	for _, addr := range []string{"127.0.0.1:7480", "127.0.0.1:0"} {
		if l, err := net.Listen("tcp", addr); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	return ""
}

// freeDNSAddress returns the documented address of the names, or a free one if another agent uses
// that; "" if there is none.
func freeDNSAddress() string {
	for _, addr := range []string{"127.0.0.1:8653", "127.0.0.1:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		defer l.Close()
		c, err := net.ListenPacket("udp", l.Addr().String())
		if err != nil {
			continue
		}
		defer c.Close()
		return l.Addr().String()
	}
	return ""
}

// greet prints how to use a running demo.
func (d *demo) greet(ctx context.Context, a *agent, out io.Writer) {
	fmt.Fprintf(out, "ironvip %s demo: three backends, two services, everything on this host's loopback\n", a.version)
	fmt.Fprintf(out, "dataplane  %s (%s)\n", a.planes.Mode(), a.planes.Reason())
	fmt.Fprintf(out, "API        http://%s/v1/services\n", a.config.get().API.Listen)
	fmt.Fprintf(out, "dashboard  http://%s/ui/\n", a.config.get().API.Listen)
	fmt.Fprintf(out, "files      %s\n\n", d.dir)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	var urls []string
	for _, f := range a.sortedFrontends() {
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
	if dns := a.config.get().DNS; dns.On() && len(urls) > 0 {
		fmt.Fprintf(out, "\nNames resolve to the VIPs (dig is in the package bind9-dnsutils):\n\n    dig @%s -p %d +short %s.%s\n",
			dns.Listen[0].Addr(), dns.Listen[0].Port(), a.sortedFrontends()[0].Service.Name, dns.Domain)
	}
	self, err := os.Executable()
	if err != nil {
		self = "ironvip"
	}
	fmt.Fprintf(out, "\nAnd this, to look inside; then change %s/services.d/demo.toml and watch.\n\n    export IRONVIP_ADDR=http://%s\n    %s status\n    %s service list\n\nCtrl-C ends it and leaves nothing behind.\n",
		d.dir, a.config.get().API.Listen, self, self)
}

func (a *agent) sortedFrontends() []vip.Frontend {
	all := maps.Collect(a.tables.Frontends.All())
	return slices.SortedFunc(maps.Values(all), func(x, y vip.Frontend) int {
		return cmp.Or(len(x.Service.Name)-len(y.Service.Name), vip.CompareFrontendKeys(x.Key, y.Key))
	})
}
