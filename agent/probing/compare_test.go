package probing

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/health"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestComparisonOfChecks(t *testing.T) {
	service := &vip.Service{Key: vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: "web"}, Ports: []vip.Port{{Name: "http", Protocol: vip.TCP, Port: 80, TargetPort: 8080}},
		Backends: []vip.Backend{{Address: netip.MustParseAddr("10.0.0.1"), Weight: 1, Node: "e"}}}
	targets := (health.Rules{Default: true}).Targets(service, &service.Backends[0])
	must.Equal(t, len(targets), 1, "targets")
	key, now := share.Key(targets[0]), time.Now().UnixMilli()
	bad := []membership.Seen{{Key: "other", Health: vip.Unknown}, {Key: key, Health: vip.Unhealthy, Since: now, Reason: "timeout"}}
	nodes := []membership.Node{
		{Name: "a", Checks: &membership.Checks{Probes: 1}},
		{Name: "b", Checks: &membership.Checks{Probes: 1, Bad: bad}},
		{Name: "c", Checks: &membership.Checks{Probes: 9, Bad: bad[:1], More: 3}},
		{Name: "d", Checks: &membership.Checks{}},
		{Name: "e", Checks: &membership.Checks{Probes: 1}},
		{Name: "f", Checks: &membership.Checks{Probes: 1, Alone: true}},
		{Name: "real-server"},
	}
	text := func(list []v1.CheckComparison) string {
		var out []string
		for _, one := range list {
			if one.Verdict != nil {
				out = append(out, "fleet "+one.Verdict.Health)
			}
			for _, f := range one.Nodes {
				word := f.Node + " " + f.Health
				if f.Local {
					word += " local"
				}
				out = append(out, strings.TrimSpace(word+" "+f.Reason))
			}
		}
		return strings.Join(out, "; ")
	}
	for _, test := range []struct {
		how  share.Sharing
		want string
	}{
		{share.Sharing{Probers: []string{"a", "b", "c"}, Verdict: &share.Verdict{Health: vip.Healthy, Since: now}},
			"fleet healthy; a healthy; b unhealthy timeout; c; e healthy local; f healthy"},
		{share.Sharing{Probers: []string{"a"}}, "a healthy; e healthy local; f healthy"},
		{share.Sharing{All: true}, "a healthy; b unhealthy timeout; c; d healthy; e healthy local; f healthy"},
	} {
		c := comparison{nodes: nodes, rules: health.Rules{Default: true}, sharing: func(asked string) share.Sharing {
			expect.Equal(t, asked, key, "asked for")
			return test.how
		}}
		expect.Equal(t, text(c.backend(service, &service.Backends[0])), test.want, "%+v", test.how)
	}
	expect.Equal(t, fmt.Sprint(timeOf(0)), "<nil>", "no time")
}
