package metallb

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// convert converts a text, and returns its notes as lines.
func convert(text string) (migrate.Result, string) {
	result := Convert("f", text)
	var notes strings.Builder
	for _, n := range result.Notes {
		notes.WriteString(n.String() + "\n")
	}
	return result, notes.String()
}

func TestConvert(t *testing.T) {
	result, notes := convert(string(must.Get(os.ReadFile("testdata/metallb.yaml"))(t)))
	for want, got := range map[string]any{
		`[{"name":"lan","cidrs":["192.168.10.0/28","192.168.10.100-192.168.10.120","fd00:10::/124"],"auto_assign":false,"namespaces":["shop","shop-test"],"announce":"l2"},` +
			`{"name":"public","cidrs":["198.51.100.0/24"],"announce":"bgp","bgp":{"communities":["65010:1:2","65010:7"],"peers":["10.0.0.254"],"host_routes":false,"aggregate":["198.51.100.0/24"]}}]`: result.Pools,
		`[{"peer":"10.0.0.254","asn":65000,"local_asn":65010,"multihop":255,"password_file":"bgp-password","bfd":"3x150ms"}]`: result.Announce.Routers,
		`["eth1"]`: result.Announce.Interfaces,
	} {
		expect.Equal(t, string(must.Get(json.Marshal(got))(t)), want)
	}
	expect.Equal(t, notes, `f:11: spec.serviceAllocation.priority is not converted
f:20: spec.nodeSelectors is not converted
f:31: avoidBuggyIPs is not converted: write the addresses that end with .0 and .255 to exclude of the pool "public"
f:55: write the password to the file bgp-password beside ironvip.toml
f:56: spec.holdTime is not converted
f:60: spec.echoMode is not converted
f:61: a resource of kind "Secret" is not converted
`)
}

// Each part of which the result has nothing is a note with its line.
func TestNothingIsLost(t *testing.T) {
	const head = "kind: IPAddressPool\nmetadata: {name: a}\nspec:\n  addresses: [192.0.2.0/24]\n"
	const peer = "---\nkind: BGPPeer\nmetadata: {name: r}\nspec: {myASN: 1, peerASN: 2, peerAddress: 10.0.0.1}\n"
	for _, c := range []struct{ name, text, pools, note string }{
		{"no advertisement", head, "a off", ""},
		{"all pools", head + "---\nkind: L2Advertisement\n", "a l2", ""},
		{"no such pool", head + "---\nkind: L2Advertisement\nspec: {ipAddressPools: [b]}\n", "a off", `f:7: there is no IPAddressPool "b" here`},
		{"selected by labels", head + "---\nkind: L2Advertisement\nspec: {ipAddressPoolSelectors: [{matchLabels: {x: y}}]}\n", "a off", "f:7: ipAddressPoolSelectors is not converted"},
		{"both modes", head + peer + "---\nkind: L2Advertisement\n---\nkind: BGPAdvertisement\n", "a bgp", `f:12: pool "a" is announced at layer 2, too`},
		{"no such router", head + "---\nkind: BGPAdvertisement\nspec: {peers: [q]}\n", "a bgp", `f:7: there is no BGPPeer "q" here`},
		{"two policies", head + peer + "---\nkind: BGPAdvertisement\nspec: {communities: [\"1:2\"]}\n---\nkind: BGPAdvertisement\nspec: {localPref: 7}\n", "a bgp", "f:13: the BGPAdvertisement differs from that of before"},
		{"aggregates in a range", head + peer + "---\nkind: BGPAdvertisement\nspec: {aggregationLength: 28}\n", "a bgp 192.0.2.0/24 alone", "f:10: aggregates of /28 in 192.0.2.0/24 become one of 192.0.2.0/24"},
		{"aggregate and host routes", head + peer + "---\nkind: BGPAdvertisement\nspec: {aggregationLength: 24}\n---\nkind: BGPAdvertisement\n", "a bgp 192.0.2.0/24", ""},
		{"no such profile", head + strings.Replace(peer, "10.0.0.1}", "10.0.0.1, bfdProfile: x}", 1), "a off", `f:8: there is no BFDProfile "x" here`},
		{"another type", strings.Replace(head, "[192.0.2.0/24]", "{a: b}", 1), "a off", "f:4: spec.addresses is not understood"},
		{"no YAML", head + "---\na: [\n", "a off", "not read from here on: yaml"},
		{"another text", "just words\n", "", `a resource of kind "" is not converted`},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, notes := convert(c.text)
			var got []string
			for _, p := range result.Pools {
				words := []string{p.Name, p.Announce}
				if p.BGP != nil {
					words = append(words, p.BGP.Aggregate...)
					if p.BGP.HostRoutes != nil {
						words = append(words, "alone")
					}
				}
				got = append(got, strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
			}
			expect.Equal(t, strings.Join(got, "; "), c.pools)
			expect.Contains(t, notes, c.note)
			expect.True(t, c.note != "" || notes == "", "%s", notes)
		})
	}
}

func FuzzConvert(f *testing.F) {
	f.Add(string(must.Get(os.ReadFile("testdata/metallb.yaml"))(f)))
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range Convert("f", text).Notes {
			expect.True(t, n.Text != "" && n.Line > 0, "note without a line or text: %v", n)
		}
	})
}
