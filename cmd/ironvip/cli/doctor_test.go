package cli

import (
	"net/netip"
	"slices"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
)

// The agent has the ports of DNS that are in use, except those that it reports as another program's.
func TestPortsOfTheAgent(t *testing.T) {
	first, second := netip.MustParseAddrPort("127.0.0.1:53"), netip.MustParseAddrPort("127.0.0.1:5353")
	listen := []netip.AddrPort{first, second}
	problem := func(code string) v1.NodeStatus {
		return v1.NodeStatus{Checks: []v1.Check{{Name: "pools"}, {Name: "dns", Problems: []v1.Problem{
			{Code: code, Message: "DNS queries are not answered at 127.0.0.1:5353: bind: address already in use"}}}}}
	}
	for what, c := range map[string]struct {
		status v1.NodeStatus
		want   []netip.AddrPort
	}{
		"no agent, or one without DNS": {v1.NodeStatus{}, nil},
		"all are up":                   {v1.NodeStatus{Checks: []v1.Check{{Name: "dns"}}}, listen},
		"a port is taken":              {problem(vip.CodePortTaken), listen[:1]},
		"another problem":              {problem(vip.CodeDataplane), listen},
	} {
		if got := ofAgent(c.status, listen); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}
