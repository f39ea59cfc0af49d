package kubevip

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// pod returns a static pod with variables: "cp_enable=true address=10.0.0.1", one in a line.
func pod(env string) string {
	text := "kind: Pod\nspec:\n  containers:\n  - env:\n"
	for v := range strings.FieldsSeq(env) {
		name, value, _ := strings.Cut(v, "=")
		text += fmt.Sprintf("    - {name: %s, value: %q}\n", name, value)
	}
	return text
}

// summary returns a result in few words: "l2 eth0 10.0.0.1:6443".
func summary(t *testing.T, r migrate.Result) string {
	t.Helper()
	var out []string
	if a := r.Announce; a != nil {
		out = append(append(out, a.Mode), a.Interfaces...)
		for _, router := range a.Routers {
			text := string(must.Get(json.Marshal(router))(t))
			out = append(out, strings.NewReplacer(`"`, "", "{", "", "}", "").Replace(text))
		}
	}
	for _, p := range r.Pools {
		out = append(out, p.Name+"="+strings.Join(append(p.CIDRs, p.Namespaces...), ","))
	}
	for _, s := range r.Services {
		out = append(out, fmt.Sprintf("%s:%s", s.VIPs[0], s.Ports[0].Port))
	}
	return strings.TrimSpace(strings.Join(out, " "))
}

// A variable that the result has nothing of is a note with its line, and the result is valid.
func TestNothingIsLost(t *testing.T) {
	const plane = "cp_enable=true address=10.0.0.1 "
	for _, c := range []struct{ name, text, want, note string }{
		{"a control plane", pod(plane + "vip_arp=true vip_interface=eth0"), "l2 eth0 10.0.0.1:6443", ""},
		{"two addresses", pod("cp_enable=true vip_address=10.0.0.1,2001:db8::1 port=443"), "10.0.0.1:443 2001:db8::1:443", ""},
		{"an address that is a name", pod("cp_enable=true address=api.example.com"), "", `f:6: "api.example.com" is not an address: write it`},
		{"no address", pod("cp_enable=true"), "", "f:5: the control plane has no address"},
		{"another port", pod(plane + "port=x"), "10.0.0.1:6443", `f:7: port "x" is not a number`},
		{"BGP", pod(plane + "bgp_enable=true bgp_as=65010 bgp_peeraddress=10.0.0.254 bgp_peeras=65000 bgp_sourceip=10.0.0.5"), "bgp peer:10.0.0.254,asn:65000,local_asn:65010,source:10.0.0.5 10.0.0.1:6443", ""},
		{"several peers", pod(plane + "bgp_enable=true bgp_peers=10.0.0.254:65000::false,[2001:db8::1]:65001:secret:true"),
			"bgp peer:10.0.0.254,asn:65000,local_asn:65000 peer:2001:db8::1,asn:65001,local_asn:65000,multihop:255,password_file:bgp-password 10.0.0.1:6443", "f:8: write the password of 2001:db8::1 to the file"},
		{"a peer without a number", pod(plane + "bgp_enable=true bgp_peers=10.0.0.254:x::false"), "bgp peer:10.0.0.254,asn:0,local_asn:65000 10.0.0.1:6443", `f:8: bgp_peers "x" is not a number`},
		{"Services", pod("svc_enable=true vip_arp=true vip_servicesinterface=eth1"), "l2 eth1", "f:5: svc_enable: add the source kubernetes, and a pool"},
		{"balancing", pod(plane + "lb_enable=true lb_port=6443"), "10.0.0.1:6443", "f:7: lb_enable is not converted\nf:8: lb_port is not converted"},
		{"what is off", pod(plane + "lb_enable=false vip_ddns=false"), "10.0.0.1:6443", ""},
		{"an unknown variable", pod(plane + "foo=bar"), "10.0.0.1:6443", "f:7: foo is not converted"},
		{"a variable twice", pod(plane + "port=443 port=6443"), "10.0.0.1:6443", "f:7: port is not converted"},
		{"passwords of peers that are off", pod(plane + "bgp_peerpass=secret bgp_peers=10.0.0.254:65000:secret"), "10.0.0.1:6443", "f:7: bgp_peerpass is not converted\nf:8: bgp_peers is not converted"},
		{"two passwords", pod(plane + "bgp_enable=1 bgp_peers=10.0.0.1:65000:secret:,10.0.0.2:65000:secret2:T"),
			"bgp peer:10.0.0.1,asn:65000,local_asn:65000,password_file:bgp-password peer:10.0.0.2,asn:65000,local_asn:65000,multihop:255,password_file:bgp-password-2 10.0.0.1:6443",
			"f:8: write the password of 10.0.0.1 to the file bgp-password beside\nf:8: write the password of 10.0.0.2 to the file bgp-password-2 beside"},
		{"options of a peer", pod(plane + "bgp_enable=true bgp_peers=10.0.0.1:65000::true/mpbgp_nexthop=fixed"), "bgp peer:10.0.0.1,asn:65000,local_asn:65000,multihop:255 10.0.0.1:6443", "f:8: the options of the peer 10.0.0.1 are not converted"},
		{"a peer without an end", pod(plane + "bgp_enable=true bgp_peers=[10.0.0.1:65000:secret"), "bgp 10.0.0.1:6443", "f:8: a peer is not ADDRESS:AS:PASSWORD:MULTIHOP"},
		{"the number of a peer", pod(plane + "bgp_enable=true bgp_peeraddress=10.0.0.1"), "bgp peer:10.0.0.1,asn:65000,local_asn:65000 10.0.0.1:6443", ""},
		{"neither true nor false", pod(plane + "vip_arp=yes"), "10.0.0.1:6443", `f:7: vip_arp "yes" is neither true nor false`},
		{"another container", pod("FOO=bar"), "", "f:4: a container with neither cp_enable nor svc_enable"},
		{"an argument", strings.Replace(pod(plane), "- env:", "- args: [manager, --x]\n    env:", 1), "10.0.0.1:6443", `f:4: "--x" of "args manager --x"`},
		{"a variable from elsewhere", pod(plane) + "    - {name: vip_interface, valueFrom: {fieldRef: {fieldPath: x}}}\n    - {name: vip_nodename, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}\n",
			"10.0.0.1:6443", "f:7: vip_interface is taken from elsewhere"},
		{"a DaemonSet", "kind: DaemonSet\nspec: {template: {spec: {containers: [{env: [{name: cp_enable, value: \"true\"}, {name: address, value: 10.0.0.1}]}]}}}\n", "10.0.0.1:6443", ""},
		{"the cloud provider", "kind: ConfigMap\nmetadata: {name: kubevip}\ndata: {cidr-global: \"10.0.0.3/28, 10.0.1.0/28, 0.0.0.0/32\", range-shop: 10.0.2.1-10.0.2.9, x: y}\n---\nkind: ConfigMap\nmetadata: {name: other}\n",
			"cidr-global=10.0.0.0/28,10.0.1.0/28 range-shop=10.0.2.1-10.0.2.9,shop", "f:3: 10.0.0.3/28 has bits set behind its length\nf:3: 0.0.0.0/32 means addresses by DHCP\nf:3: data.x is not converted\nf:5: the ConfigMap \"other\" is not converted"},
		{"annotations of a Service", "kind: Service\nmetadata:\n  annotations:\n    kube-vip.io/loadbalancerIPs: 10.0.0.9\n    kube-vip.io/egress: \"true\"\n    x: y\n", "", "f:5: kube-vip.io/egress is not converted"},
		{"another resource", "kind: Secret\n", "", `f:1: a resource of kind "Secret" is not converted`},
	} {
		t.Run(c.name, func(t *testing.T) {
			result := Convert("f", c.text)
			notes := ""
			for _, n := range result.Notes {
				notes += n.String() + "\n"
			}
			expect.Equal(t, summary(t, result), c.want)
			expect.Equal(t, strings.Count(notes, "\n"), strings.Count(c.note, "\n")+min(1, len(c.note)), "%s", notes)
			for note := range strings.SplitSeq(c.note, "\n") {
				expect.Contains(t, notes, note)
			}
			expect.Equal(t, result.Refused, 0)
			expect.True(t, !strings.Contains(notes, "secret"), "a note has a password: %s", notes)
		})
	}
}

func FuzzConvert(f *testing.F) {
	f.Add(string(must.Get(os.ReadFile("testdata/kube-vip.yaml"))(f)))
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range Convert("f", text).Notes {
			expect.True(t, n.Text != "" && n.Line > 0, "note without a line or text: %v", n)
		}
	})
}
