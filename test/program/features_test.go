//go:build system

package program

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// config validate accepts all features of a service, and rejects every invalid combination with its
// place and a hint.
func TestValidateOfServices(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "services.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("ironvip.toml", "[[source]]\ntype = 'static'\npath = 'services.d'\n[[pool]]\nname = 'p'\ncidrs = ['192.0.2.0/24', '2001:db8::/64']\nauto_assign = true\n")

	var good strings.Builder
	for i, text := range []string{
		"ports = [ { port = '10000-10099' }, { port = 'all', protocol = 'udp' }, { port = 80, protocol = 'sctp', node_port = 'auto' } ]",
		"ports = [ { port = '10000-10099', target_port = 80 } ]",
		"ports = [ { port = 80 } ]\nforward = 'dr'\nbackends = [ { address = '10.1.0.1', port = 80 } ]",
		"ports = [ { port = '1-9' } ]\nforward = 'tunnel'\nbackends = [ { address = '10.1.0.1' } ]",
		"ports = [ { port = 53, protocol = 'udp' } ]\nforward = 'dr'\nscheduler_flags = ['one-packet']",
		"ports = [ { port = 80 } ]\nscheduler = 'sed'",
		"ports = [ { port = 80 } ]\nscheduler = 'nq'",
		"ports = [ { port = 80 } ]\nscheduler = 'fo'",
		"ports = [ { port = 80 } ]\nscheduler = 'dh'",
		"ports = [ { port = 80 } ]\ninternal_traffic = 'local'\nexternal_traffic = 'local'\nhealth_check_node_port = 'auto'",
		"ports = [ { port = 80 } ]\nexternal_traffic = 'local'\nhealth_check_node_port = 30000",
		"ports = [ { port = 80 } ]\ntraffic_distribution = 'same-zone'",
		"ports = [ { port = 80 } ]\ntraffic_distribution = 'same-node'",
		"ports = [ { port = 80 } ]\nsource_ranges = ['10.0.0.0/8', '192.0.2.7', '2001:db8::/32']",
		"ports = [ { port = 80 } ]\nbackends = [ { address = '10.1.0.1', state = 'terminating' } ]",
		"ports = [ { port = 80 } ]\nproxy_protocol = 'v2'\naccept_proxy_from = ['192.0.2.0/28', '2001:db8::1']",
	} {
		fmt.Fprintf(&good, "[[service]]\nname = \"good%d\"\n%s\n", i, text)
	}
	write("services.d/good.toml", good.String())
	if r := command(t, "config", "validate", dir); r.code != 0 {
		t.Errorf("good services: validate ends with %d\n%s%s", r.code, r.stdout, r.stderr)
	}

	// The mistake is on the first line of each.
	bad := []struct{ field, text, hint string }{
		{"ports[0].port", "ports = [ { port = '99-80' } ]", `write "80-99"`},
		{"ports[0].port", "ports = [ { port = '80-65536' } ]", "1 to 65535"},
		{"ports[1].port", "ports = [ { port = '80-99' }, { port = 90 } ]", "change one of the two"},
		{"ports[0].node_port", "ports = [ { port = '80-99', node_port = 'auto' } ]", "remove it"},
		{"ports[0].target_port", "ports = [ { port = 80, target_port = 81 } ]\nforward = 'dr'", "use forward nat"},
		{"ports[0].node_port", "ports = [ { port = 80, node_port = 'auto' } ]\nforward = 'tunnel'", "use forward nat"},
		{"backends[0].port", "backends = [ { address = '10.1.0.1', port = 81 } ]\nports = [ { port = 80 } ]\nforward = 'dr'", "use forward nat"},
		{"backends[0].address", "backends = [ { address = 'fd00::1' } ]\nfamilies = ['ipv4']\nports = [ { port = 80 } ]\nforward = 'dr'", "of the VIP's family"},
		{"masquerade", "masquerade = 'always'\nports = [ { port = 80 } ]\nforward = 'dr'", "use forward nat"},
		{"scheduler_flags[0]", "scheduler_flags = ['one-packet']\nports = [ { port = 53, protocol = 'udp' } ]", "use forward dr or tunnel"},
		{"scheduler_flags[0]", "scheduler_flags = ['one-packet']\nports = [ { port = 53 } ]\nforward = 'dr'", "a service of their own"},
		{"health_check_node_port", "health_check_node_port = 'auto'\nports = [ { port = 80 } ]", "external_traffic local"},
		{"source_ranges[0]", "source_ranges = ['10.1.2.3/8']\nports = [ { port = 80 } ]", "write 10.0.0.0/8"},
		{"source_ranges[0]", "source_ranges = ['2001:db8::/32']\nfamilies = ['ipv4']\nports = [ { port = 80 } ]", "add the family"},
		{"proxy_protocol", "proxy_protocol = 'v2'\nports = [ { port = 53, protocol = 'udp' } ]", "remove it"},
		{"accept_proxy_from", "accept_proxy_from = ['192.0.2.1']\nports = [ { port = 80 } ]\nforward = 'dr'", "use forward nat"},
		{"traffic_distribution", "traffic_distribution = 'same-rack'\nports = [ { port = 80 } ]", "same-zone"},
		{"external_traffic", "external_traffic = 'nodes'\nports = [ { port = 80 } ]", "cluster, local"},
	}
	var text strings.Builder
	places := make([]string, len(bad))
	for i, b := range bad {
		fmt.Fprintf(&text, "[[service]]\nname = \"bad%d\"\n", i)
		places[i] = fmt.Sprintf(`bad.toml:%d: service "bad%d": %s: `, strings.Count(text.String(), "\n")+1, i, b.field)
		text.WriteString(b.text + "\n")
	}
	write("services.d/bad.toml", text.String())
	r := command(t, "config", "validate", dir)
	if r.code != 1 {
		t.Errorf("bad services: validate ends with %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	lines := strings.Split(r.stdout+r.stderr, "\n")
	for i, b := range bad {
		found := ""
		for _, l := range lines {
			if strings.Contains(l, places[i]) {
				found = l
			}
		}
		if _, hint, _ := strings.Cut(found, "hint: "); !strings.Contains(hint, b.hint) {
			t.Errorf("%s\nwants %swith a hint like %q, has %q", b.text, places[i], b.hint, found)
		}
	}
	if t.Failed() {
		t.Log(r.stdout + r.stderr)
	}
}
