package agent

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
