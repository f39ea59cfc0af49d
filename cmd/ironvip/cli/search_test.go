package cli

import (
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
)

func TestSearchCommand(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/search?limit=20&q=web", 200, v1.SearchResult{Matches: []v1.SearchMatch{
		{Kind: v1.KindService, Name: "web", Service: "web", State: v1.StateHealthy, Detail: "192.0.2.10 80,443/tcp 443/udp"},
		{Kind: v1.KindBackend, Name: "10.1.0.11", Service: "web", State: "unhealthy", Detail: "node web-1"},
		{Kind: v1.KindName, Name: "web.vip.internal", Service: "web", State: v1.NameAnswered, Detail: "192.0.2.10"}}})
	a.on("GET /v1/search?limit=5&q=10.9", 200, v1.SearchResult{Matches: []v1.SearchMatch{}, Missing: []string{v1.KindNode}})
	var all strings.Builder
	for _, line := range []string{"search web", "search web -o name", "search web -o json", "search 10.9 --limit 5", "search", "search web --limit 0"} {
		all.WriteString("$ ironvip " + line + "\n" + a.run(t, line).String())
	}
	golden(t, "search.txt", all.String())
}
