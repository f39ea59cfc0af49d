package static

import (
	"fmt"
	"strings"
	"testing"
)

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
