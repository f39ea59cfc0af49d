package forwarding

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/api/request"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
)

// The frontend of a dataplane with a scheduler that ironvip doesn't know: the damage names the scheduler.
func TestDiffOfAnotherScheduler(t *testing.T) {
	want := vip.Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.5"), Port: 80, Protocol: vip.TCP}, Scheduler: vip.WeightedRoundRobin,
		Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Weight: 1}}}
	have := want
	have.Scheduler, have.Backends = vip.OtherScheduler, nil // reported by the dataplane by name
	if e := diffEntry(Difference{Key: want.Key, Want: &want, Have: &have, Damage: []string{"scheduler is lblc"}}); e.Action != v1.ActionRepair ||
		strings.Join(e.Details, "; ") != "scheduler is lblc; backend 10.0.0.1:8080 is missing" {
		t.Errorf("%+v", e)
	}
}

func TestFrontendKeysAreReadBack(t *testing.T) {
	frontendKey := func(addr string, port, last uint16, p vip.Protocol, a vip.Audience) vip.FrontendKey {
		return vip.FrontendKey{Addr: netip.MustParseAddr(addr), Port: port, LastPort: last, Protocol: p, Audience: a}
	}
	for _, k := range []vip.FrontendKey{
		frontendKey("192.0.2.1", 80, 0, vip.TCP, vip.Everyone),
		frontendKey("2001:db8::1", 80, 0, vip.UDP, vip.InternalClients),
		frontendKey("192.0.2.1", 1, 65535, vip.SCTP, vip.Everyone),
		frontendKey("2001:db8::1", 10000, 10099, vip.TCP, vip.InternalClients),
	} {
		if back, err := frontendOrder.After(request.Paging{Cursor: request.Cursor[vip.FrontendKey]{List: "frontends", Last: k}.String()}); err != nil || back != k {
			t.Errorf("%s is read as %s, %v", k, back, err)
		}
	}
}
