package ipam_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// The order of resources, which decides SourceOf, is the same on all hosts.
func TestOrderOfResources(t *testing.T) {
	want := []ipam.Resource{
		{Addr: netip.MustParseAddr("192.0.2.1")},
		{Addr: netip.MustParseAddr("192.0.2.2")},
		{Addr: netip.MustParseAddr("2001:db8::1")},
		{NodePort: 30000, Protocol: vip.UDP},
		{NodePort: 30001, Protocol: vip.TCP},
		{NodePort: 30001, Protocol: vip.UDP},
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, ipam.Resource.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
