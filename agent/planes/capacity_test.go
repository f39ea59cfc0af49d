package planes

import (
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/vip"
)

func TestCapacityInTheStatus(t *testing.T) {
	used := proxy.Capacity{Files: 1888, Used: 1500, Connections: 700, Sessions: 100}
	if got := capacityChecks(used, 2048); got != nil {
		t.Errorf("not short: %+v", got)
	}
	used.Largest, used.LargestFiles, used.Refused = vip.ServiceKey{Namespace: "shop", Name: "db"}, 1200, 7
	reserved, exhausted := used, used
	reserved.Reserved, exhausted.Exhausted = true, true
	const state = "700 connections and 100 sessions use 1500 of 1888 descriptors, 1200 of them for service shop/db"
	for _, x := range []struct {
		capacity             proxy.Capacity
		level, message, hint string
	}{
		{used, v1.LevelWarn, state, "ironvip service explain shop/db"},
		{reserved, v1.LevelWarn, "clients of the largest services are refused, to keep a reserve for others (7 since the start): " + state, "idle_timeout"},
		{exhausted, v1.LevelFail, "clients of any service are refused (7 since the start): " + state, "LimitNOFILE (now 2048)"},
	} {
		got := capacityChecks(x.capacity, 2048)
		if len(got) != 1 || got[0].Name != "capacity" || got[0].Level != x.level || got[0].Message != x.message || !strings.Contains(got[0].Hint, x.hint) {
			t.Errorf("%+v: %+v", x.capacity, got)
		}
	}
}

func TestLimitsInTheStatus(t *testing.T) {
	if got := panicChecks(3, false); got != nil {
		t.Errorf("no recent panic: %v", got)
	}
	if got := panicChecks(3, true); len(got) != 1 || got[0].Level != v1.LevelWarn || !strings.Contains(got[0].Message, "3 connections since") {
		t.Errorf("panics: %v", got)
	}
	if got := limitChecks(nil); got != nil {
		t.Errorf("none limited: %+v", got)
	}
	got := limitChecks([]proxy.Limited{
		{Service: vip.ServiceKey{Namespace: "shop", Name: "db"}, Reasons: []string{"max_connections"}, Refused: 7},
		{Service: vip.ServiceKey{Name: "web"}, Reasons: []string{"max_queue", "queue_timeout"}, Refused: 9},
	})
	const want = "2 services refused clients in the last minute: shop/db for max_connections (7 since the start), web for max_queue and queue_timeout (9 since the start)"
	if len(got) != 1 || got[0].Name != "limits" || got[0].Level != v1.LevelWarn || got[0].Message != want || !strings.Contains(got[0].Hint, "explain shop/db") {
		t.Errorf("%+v", got)
	}
	got = limitChecks([]proxy.Limited{{Service: vip.ServiceKey{Name: "api"}, Full: true}})
	if len(got) != 1 || got[0].Level != v1.LevelOK || got[0].Message != "1 service full: api" || !strings.Contains(got[0].Hint, "explain api") {
		t.Errorf("full: %+v", got)
	}
	got = limitChecks([]proxy.Limited{{Service: vip.ServiceKey{Name: "api"}, Full: true}, {Service: vip.ServiceKey{Name: "web"}, Full: true, Reasons: []string{"max_queue"}, Refused: 9}})
	if len(got) != 1 || got[0].Level != v1.LevelWarn || !strings.Contains(got[0].Hint, "explain web") ||
		got[0].Message != "1 service refused clients in the last minute: web for max_queue (9 since the start); 2 services full: api, web" {
		t.Errorf("full and refusing: %+v", got)
	}
}
