package cli

import (
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
)

func TestTopCommand(t *testing.T) {
	a := newAgent(t)
	one := v1.Top{Time: now, Seconds: 5, Services: 1204, Sum: v1.TopService{Active: 1242, Connections: 315.2, In: 5 << 20, Out: 1 << 30}, Items: []v1.TopService{
		{Service: "web", Active: 1204, Connections: 311.6, In: 5 << 20, Out: 1 << 30}, {Service: "shop/db", Active: 38, Connections: 0.4, In: 100, Out: 0}}}
	a.on("GET /v1/top?count=1&interval=5s&limit=20", 200, []v1.Top{one})
	a.on("GET /v1/top?by=bytes&count=2&interval=1s&limit=5", 200, []v1.Top{one, one})
	a.on("GET /v1/top?interval=5s&limit=20", 200, []v1.Top{one})
	a.on("GET /v1/top?count=3&interval=5s&limit=20", 200, []v1.Top{{Problem: &v1.Problem{Message: "the counters can't be read"}}})
	var all strings.Builder
	for _, line := range []string{"top --once", "top -n 2 -d 1s --by bytes --limit 5 -o name", "top --once -o json", "top", "top -n 3", "top -d 10ms", "top --limit 0", "top --by name"} {
		all.WriteString("$ ironvip " + line + "\n" + strings.ReplaceAll(a.run(t, line).String(), now.Local().Format("15:04:05"), "12:13:07"))
	}
	golden(t, "top.txt", all.String())
}
