package cli

import (
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// The events of a node port are those that the allocator reports for it, and no others.
func TestEventsOfANodePort(t *testing.T) {
	a := newAgent(t)
	object := func(port uint16, p vip.Protocol) string { return ipam.Resource{NodePort: port, Protocol: p}.String() }
	a.on("GET /v1/events", 200, v1.EventList{Items: []v1.Event{
		{ID: 1, Time: now, Kind: "lease_given", Service: "web", Object: object(30080, vip.TCP), Message: "given"},
		{ID: 2, Time: now, Kind: "lease_given", Service: "dns", Object: object(30080, vip.UDP), Message: "of another protocol"},
		{ID: 3, Time: now, Kind: "lease_given", Service: "db", Object: object(30081, vip.TCP), Message: "of another port"},
		{ID: 4, Time: now, Kind: "lease_released", Service: "web", Object: object(30080, vip.TCP), Message: "released"},
	}})
	r := a.run(t, "events --object 30080/tcp")
	if r.code != command.ExitOK || !strings.Contains(r.stdout, "given") || !strings.Contains(r.stdout, "released") || strings.Contains(r.stdout, "another") {
		t.Error(r)
	}
}
