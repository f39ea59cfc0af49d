package static

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/heapsize"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/problemtest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func names(services []vip.Service) string {
	var out []string
	for _, s := range services {
		out = append(out, s.Key.String())
	}
	return strings.Join(out, " ")
}

const good = "[[service]]\nname = \"web\"\nports = [{ port = 80 }]\n"

func TestParseServices(t *testing.T) {
	pools := []spec.Pool{{Name: "v4", AutoAssign: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
	tests := []struct {
		what, doc  string
		services   string
		incomplete bool
		want       []string
	}{
		{what: "good", doc: good, services: "web"},
		{what: "BOM and CRLF", doc: "\ufeff" + strings.ReplaceAll(good, "\n", "\r\n"), services: "web"},
		{what: "nothing", doc: ""},
		{what: "unknown key", doc: good + "prots = []\n[[service]]\nname = \"db\"\nports = [{ port = 1,\n prot = 'tcp' }]\n" + strings.ReplaceAll(good, "web", "ok"), services: "ok",
			want: []string{`f.toml:4: service "web": prots: unknown key | did you mean "ports"?`,
				`f.toml:8: service "db": ports[0].prot: unknown key | did you mean "protocol"?`}},
		{what: "value out of bounds in a block of its own", doc: good + "[[service.backends]]\naddress = '10.0.0.1'\n\nweight = 70000\n",
			want: []string{`f.toml:7: service "web": backends[0].weight: 70000 is out of bounds | use 0 to 65535`}},
		{what: "groups and backends", doc: good + "backends = [{ address = '10.0.0.1' }]\n[[service.groups]]\nname = 'stable'\nweight = 90\n",
			want: []string{`f.toml:4: service "web": backends: a service has either backends or groups, and this one has both | move them into a group`}},
		{what: "backend of a group", doc: good + "groups = [\n{ name = 'stable', weight = 70000 },\n{ name = 'canary', backends = [\n{ address = '10.0.0.1' },\n{ address = '10.0.0.1' }] },\n]\n",
			want: []string{`f.toml:5: service "web": groups[0].weight: 70000 is out of bounds | use 0 to 65535`,
				`f.toml:8: service "web": groups[1].backends[1]: 10.0.0.1 is that of groups[1].backends[0], too | keep one`}},
		{what: "all at once, by line", doc: "[[service]]\nname = 'a'\nbackends = [\n{ address = 'x' },\n{ address = '10.0.0.1', weight = -1 },\n]\n", want: []string{
			`f.toml:1: service "a": ports: a service needs a port`,
			`f.toml:4: service "a": backends[0].address: "x" is not an address`,
			`f.toml:5: service "a": backends[1].weight: -1 is out of bounds`}},
		{what: "twice in a file", doc: good + good, services: "web",
			want: []string{`f.toml:5: service "web": name: "web" is the name of the service at f.toml:1, too | rename or remove`}},
		{what: "in a pool", doc: good + "backends = [{address = '192.0.2.7'}]",
			want: []string{`f.toml:4: service "web": backends[0].address: 192.0.2.7 is in VIP pool "v4"`}},
		{what: "wrong family for the pool", doc: good + "backends = [{address = '2001:db8::1'}]",
			want: []string{`f.toml:4: service "web": backends[0].address: 2001:db8::1 is ipv6 and the service's VIP is ipv4`}},
		{what: "bad duration", doc: good + "drain_timeout = \"soon\"",
			want: []string{`f.toml:4: service "web": drain_timeout: "soon" is not a duration | write it with a unit`}},
		{what: "several in a health check", doc: good + "[service.health]\ntype = \"http\"\npth = \"/\"\nrise = 0\n\ntimeout = 5\nstatus = \"ok\"\n", want: []string{
			`f.toml:6: service "web": health.pth: unknown key | did you mean "path"?`,
			`f.toml:7: service "web": health.rise: 0 is out of bounds | use 1 to 255`,
			`f.toml:9: service "web": health.timeout: wants a duration, has the number 5`,
			`f.toml:10: service "web": health.status: "ok" is not a status code`}},
		{what: "no name", doc: "[[service]]\nports = [{port = 80}]\n" + good, services: "web", incomplete: true,
			want: []string{`f.toml:1: name: a name is needed`}},
		{what: "bad name", doc: strings.Replace(good, "web", "Web", 1), incomplete: true, want: []string{`f.toml:2: service "Web": name: "Web" is not a DNS label`}},
		{what: "name of a wrong type", doc: "[[service]]\nname = 1\nports = [{port = 80}]", incomplete: true, want: []string{`f.toml:2: name: wants a string, has the number 1`}},
		{what: "cut off", doc: good + "[[service]]\nname = \"d", incomplete: true, want: []string{`f.toml:5: not valid TOML: unexpected EOF; expected '"'`}},
		{what: "key twice", doc: good + "name = 'b'", incomplete: true, want: []string{`f.toml:4: not valid TOML: Key 'service.name' has already been defined`}},
		{what: "not UTF-8", doc: good + "pool = \"\xff\"", incomplete: true, want: []string{`f.toml:4: not UTF-8 text | save the file as UTF-8`}},
		{what: "UTF-16", doc: "\xff\xfe[\x00[\x00", incomplete: true, want: []string{`f.toml:1: not UTF-8 text | save the file as UTF-8`}},
		{what: "only a mark of UTF-16", doc: "\xff\xfe", incomplete: true, want: []string{`f.toml:1: not UTF-8 text | save the file as UTF-8`}},
		{what: "single brackets", doc: "[service]\nname = 'a'", incomplete: true, want: []string{`f.toml:1: service: wants a list, has a table | start each service with [[service]], in double`}},
		{what: "no tables", doc: "service = [ 1 ]", incomplete: true, want: []string{`f.toml:1: service[0]: wants a table, has the number 1`}},
		{what: "misspelt header", doc: good + "[[servce]]\nname = 'a'\n", services: "web", incomplete: true, want: []string{`f.toml:4: servce: unknown key | did you mean [[service]]?`}},
		{what: "settings in the wrong file", doc: "[[pool]]\nname = 'a'\n", incomplete: true, want: []string{`f.toml:1: pool: unknown key | services are written as [[service]] blocks; settings`}},
		{what: "large number", doc: good + "x = 99999999999999999999", incomplete: true, want: []string{`f.toml:4: not valid TOML: 99999999999999999999 is out of range`}},
	}
	for _, test := range tests {
		t.Run(test.what, func(t *testing.T) {
			f := ParseServices("f.toml", []byte(test.doc), "static", pools)
			problemtest.Expect(t, f.Problems, test.want...)
			if got := names(f.Services); got != test.services || f.Incomplete != test.incomplete {
				t.Errorf("services %q, incomplete %v; want %q, %v", got, f.Incomplete, test.services, test.incomplete)
			}
			expect.Equal(t, f.Empty, (test.doc == ""), "empty")
		})
	}
}

func TestParseServicesStatesTheOrigin(t *testing.T) {
	f := ParseServices("/etc/f.toml", []byte("# x\n\n"+good), "static", nil)
	if s := f.Services[0]; s.Origin != "/etc/f.toml:3" || s.Source != "static" {
		t.Errorf("origin %q, source %q", s.Origin, s.Source)
	}
	f = ParseServices("f.toml", []byte(good+"scheduler = 'foo'\n"), "static", nil)
	expect.Equal(t, cmp.Diff([]vip.ServiceKey{{Namespace: "default", Name: "web"}}, f.Refused), "")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
}

// Anything except a readable regular file is refused at once. The other files take effect.
func TestLoadSkipsIrregularFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("web.toml"), good)
	write(t, at("other.toml"), strings.Replace(good, "80", "81", 1))
	write(t, at(".hidden.toml"), "bad")
	write(t, at("web.toml~"), "bad")
	write(t, at("note.txt"), "bad")
	must.Succeed(t, os.Mkdir(at("dir.toml"), 0o755))
	must.Succeed(t, syscall.Mkfifo(at("fifo.toml"), 0o644))
	for name, target := range map[string]string{"dangling.toml": "gone", "device.toml": "/dev/zero", "loop.toml": "loop.toml", "linked.toml": "linked"} {
		must.Succeed(t, os.Symlink(target, at(name)))
	}
	write(t, at("linked"), strings.Replace(good, "web", "linked", 1))
	write(t, at("huge.toml"), good)
	must.Succeed(t, os.Truncate(at("huge.toml"), 100<<20))
	services, problems := (&Config{Path: dir}).Load("static", nil)
	expect.Equal(t, names(services), "linked web", "services")
	problemtest.Expect(t, problems,
		at("dangling.toml")+`: no such file or directory | it is a link to gone, which is not there: repair or remove the link`,
		at("device.toml")+`: is a device, not a file | move it elsewhere`,
		at("dir.toml")+`: is a directory, not a file | move it elsewhere`,
		at("fifo.toml")+`: is a named pipe, not a file | move it elsewhere`,
		at("huge.toml")+`: has 104857600 bytes, more than the 4 MiB that are read | split it`,
		at("loop.toml")+`: too many levels of symbolic links`,
		at("web.toml")+`:1: service "web": name: "web" is the name of the service at `+at("other.toml")+`:1, too | rename or remove`,
	)
	if _, problems := (&Config{Path: at("gone")}).Load("static", nil); len(problems) != 1 || problems[0].Hint == "" {
		t.Errorf("of a missing directory: %v", problems)
	}
}

// ParseServices never panics. Every problem has a place and a code.
func FuzzParseServices(f *testing.F) {
	f.Add([]byte(good + "backends = [{address = '10.0.0.1', weight = 3, port = '1-2'}]\naffinity = {}\nnode_port = 1"))
	f.Add([]byte("title = \"x\" # [1]\n[node]\nname = \"\"\"\ntwo\"\"\"\n[[service]]\nname = 'a#b'\nports = [ { port = 80 },\n  { port = 81, name = \"x\" }, # {\n ]\nlabels.team.x = 1\n[[service.backends]]\naddress = \"10.0.0.1\"\n [[service]]\n when = 1979-05-27 07:32:00\n [service.affinity]\n timeout = \"3h\"\n"))
	f.Add([]byte("[[service]]\nname='a'\nports=[{port=80,node_port='auto'},{port=81,node_port=1}]\nlabels={a='b'}\nvips=['192.0.2.1']\ndrain_timeout='1h'"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		out := ParseServices("f.toml", doc, "static", nil)
		for _, p := range out.Problems {
			if !strings.HasPrefix(p.Place, "f.toml:") || p.Code == "" || p.Message == "" {
				t.Errorf("problem without a place, code or message: %+v", p)
			}
		}
		for _, s := range out.Services {
			again := spec.FromService(s)
			built, problems := again.Build(s.Source, s.Origin)
			must.Empty(t, problems, "written back, %v is refused", s)
			expect.Equal(t, cmp.Diff(s, built, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })), "")
		}
	})
}

// Refusing an invalid combination names the line to change. In a row, >> precedes that line.
func TestCombinationsAreRefusedWhereTheyAreWritten(t *testing.T) {
	const backend = "\n[[service.backends]]\naddress = '10.1.0.1'\n"
	for _, c := range []struct{ field, service, ports string }{
		{"ports[0].port", "", ">>port = '10099-10000'"},
		{"ports[0].port", "", ">>port = '80-80'"},
		{"ports[0].port", "", ">>port = 'any'"},
		{"ports[0].target_port", "", "port = '10-19'\n>>target_port = '20-29'"},
		{"ports[0].node_port", "", "port = '10-19'\n>>node_port = 'auto'"},
		{"ports[1].port", "", "port = '10-19'\n[[service.ports]]\n>>port = 19"},
		{"ports[1].port", "", "port = 19\n[[service.ports]]\n>>port = 'all'"},
		{"ports[0].target_port", "forward = 'dr'", "port = 80\n>>target_port = 8080"},
		{"ports[0].target_port", "forward = 'tunnel'", "port = '10-19'\n>>target_port = 10"},
		{"ports[0].node_port", "forward = 'dr'", "port = 80\n>>node_port = 'auto'"},
		{"ports[0].protocol", "", "port = 80\n>>protocol = 'stcp'"},
		{"backends[0].port", "forward = 'dr'", "port = 80" + backend + ">>port = 8080"},
		{"backends[0].port", "forward = 'dr'", "port = '10-19'" + backend + ">>port = 10"},
		{"backends[0].address", "forward = 'tunnel'\nfamilies = ['ipv6']", "port = 80" + strings.Replace(backend, "address", ">>address", 1)},
		{"backends[0].state", "", "port = 80" + backend + ">>state = 'ending'"},
		{"masquerade", "forward = 'dr'\n>>masquerade = 'always'", "port = 80"},
		{"scheduler", ">>scheduler = 'lblc'", "port = 80"},
		{"scheduler_flags[0]", ">>scheduler_flags = ['one-packet']", "port = 53\nprotocol = 'udp'"},
		{"scheduler_flags[0]", "forward = 'dr'\n>>scheduler_flags = ['one-packet']", "port = 53"},
		{"scheduler_flags[0]", "forward = 'dr'\naffinity = {}\n>>scheduler_flags = ['one-packet']", "port = 53\nprotocol = 'udp'"},
		{"internal_traffic", ">>internal_traffic = 'node'", "port = 80"},
		{"external_traffic", ">>external_traffic = 'Local'", "port = 80"},
		{"traffic_distribution", ">>traffic_distribution = 'zone'", "port = 80"},
		{"health_check_node_port", ">>health_check_node_port = 'auto'", "port = 80"},
		{"health_check_node_port", "external_traffic = 'local'\n>>health_check_node_port = 30080", "port = 80\nnode_port = 30080"},
		{"source_ranges[1]", "source_ranges = [\n'10.0.0.0/8',\n>>'10.0.0.1/8',\n]", "port = 80"},
		{"source_ranges[0]", "source_ranges = [\n>>'host.example',\n]", "port = 80"},
		{"source_ranges[1]", "families = ['ipv4']\nsource_ranges = [\n'10.0.0.0/8',\n>>'2001:db8::/32',\n]", "port = 80"},
	} {
		text := "[[service]]\nname = 'a'\n" + c.service + "\n[[service.ports]]\n" + c.ports + "\n"
		line := strings.Count(text[:strings.Index(text, ">>")], "\n") + 1
		f := ParseServices("f.toml", []byte(strings.Replace(text, ">>", "", 1)), "static", nil)
		want := fmt.Sprintf(`f.toml:%d: service "a": %s: `, line, c.field)
		if len(f.Problems) != 1 || !strings.HasPrefix(f.Problems[0].Error(), want) || f.Problems[0].Hint == "" || len(f.Services) != 0 {
			t.Errorf("%s%v\nwant %swith a hint", text, f.Problems, want)
		}
	}
}

// A service does not keep the text of its file in memory.
func TestServicesKeepNoText(t *testing.T) {
	comment := "# " + strings.Repeat("x", 1<<20) + "\n"
	text := []byte(comment + "[[service]]\nname = \"web\"\nlabels = { team = \"a\" }\nports = [ { name = \"http\", port = 80 } ]\nbackends = [ { address = \"10.0.0.1\", node = \"n1\", zone = \"z1\" } ]\n")
	ParseServices("a.toml", text, Type, nil) // fills what is computed once
	size := heapsize.Of(func() any {
		got := ParseServices("a.toml", text, Type, nil)
		must.Len(t, got.Services, 1)
		return got.Services
	})
	runtime.KeepAlive(text)
	expect.AtMost(t, size, len(comment)/2, "bytes of a service")
}
