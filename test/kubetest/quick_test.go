package kubetest

import (
	"net/netip"
	"testing"

	"gopkg.in/yaml.v3"
)

func TestAdvertisedIsWhatTheAPIAllows(t *testing.T) {
	for _, tc := range []struct{ addr, cidr, want string }{
		{"127.0.0.1", "10.96.0.0/16", "192.0.2.1"},
		{"127.0.0.1", "fd96::/112", "2001:db8::1"},
		{"::1", "10.96.0.0/16", "192.0.2.1"},
		{"10.77.0.2", "10.96.0.0/16", "10.77.0.2"},
		{"10.77.0.2", "fd96::/112", "2001:db8::1"},
		{"fd77::2", "fd96::/112", "fd77::2"},
	} {
		c := &Cluster{opts: Options{Addr: netip.MustParseAddr(tc.addr), ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix(tc.cidr)}}}
		if got := c.advertised(); got.String() != tc.want {
			t.Errorf("at %s with Services in %s: %v, want %s", tc.addr, tc.cidr, got, tc.want)
		}
	}
}

func TestManifestsAreYAML(t *testing.T) {
	six := netip.MustParseAddr("fd77::1")
	for name, manifest := range map[string]string{
		"slice":       EndpointSlice("a", "b", 80, six, six.Next()),
		"empty slice": EndpointSlice("a", "b", 80),
		"node":        Node("a", "z: {", six),
		"bare node":   Node("a", ""),
	} {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(manifest), &object); err != nil || object["kind"] == nil {
			t.Errorf("%s: %v\n%s", name, err, manifest)
		}
	}
}
