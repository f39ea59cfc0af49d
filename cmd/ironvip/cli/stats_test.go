package cli

import (
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/test/expect"
)

// kernelTraffic returns traffic with the values that IPVS counts, proxyTraffic with those of the
// proxy.
func kernelTraffic(active, connections, bytes uint64) v1.Traffic {
	u := func(n uint64) *uint64 { return &n }
	return v1.Traffic{Connections: connections, Active: active, Inactive: u(active / 2), In: v1.Volume{Bytes: bytes, Packets: u(bytes / 1000)},
		Out: v1.Volume{Bytes: 20 * bytes, Packets: u(bytes / 100)},
		Rates: &v1.Rates{Connections: connections / 1000, In: v1.Volume{Bytes: bytes / 60, Packets: u(bytes / 60000)},
			Out: v1.Volume{Bytes: bytes / 3, Packets: u(bytes / 6000)}}}
}

func proxyTraffic(active, connections, bytes uint64) v1.Traffic {
	return v1.Traffic{Connections: connections, Active: active, In: v1.Volume{Bytes: bytes}, Out: v1.Volume{Bytes: 2 * bytes}}
}

func statsList() v1.StatsList {
	return v1.StatsList{Items: []v1.ServiceTotal{{Service: "web", Traffic: kernelTraffic(1204, 987654, 5<<30)}, {Service: "shop/db", Traffic: proxyTraffic(38, 400, 1000)}}}
}

func webStats() v1.ServiceStats {
	all, none := kernelTraffic(1204, 987654, 5<<30), kernelTraffic(0, 0, 0)
	return v1.ServiceStats{Service: "web", Traffic: all, Frontends: []v1.FrontendStats{
		{Frontend: "192.0.2.10:80/tcp", Kind: "vip", Port: "http", Traffic: &all, Backends: []v1.BackendStats{
			{Address: "10.1.0.11:8080", Traffic: kernelTraffic(800, 600000, 3<<30)}, {Address: "10.1.0.12:8080", Traffic: kernelTraffic(404, 387654, 2<<30)}}},
		{Frontend: "192.0.2.10:443/udp", Kind: "vip", Port: "quic", Traffic: &none, Backends: []v1.BackendStats{}},
		{Frontend: "198.51.100.1:30080/tcp", Kind: "node-port", Port: "http", Backends: []v1.BackendStats{}},
	}}
}

func dbStats() v1.ServiceStats {
	t := proxyTraffic(1, 400, 1000)
	return v1.ServiceStats{Service: "shop/db", Traffic: t, Frontends: []v1.FrontendStats{{Frontend: "192.0.2.11:5432/tcp", Kind: "vip", Port: "5432/tcp",
		Traffic: &t, Backends: []v1.BackendStats{{Address: "10.1.0.21:5432", Traffic: t}}}}}
}

func TestStatsCommands(t *testing.T) {
	a := fullAgent(t)
	for _, command := range []string{"service stats", "service stats web", "service stats web shop/db"} {
		var all strings.Builder
		for _, format := range output.Formats() {
			line := command + " -o " + string(format)
			all.WriteString("$ ironvip " + line + "\n" + a.run(t, line).String())
		}
		golden(t, strings.NewReplacer(" ", "_", "/", "-").Replace(command)+".txt", all.String())
	}
}

// A list of services is complete even if their connections are not available. A list for programs
// doesn't request them.
func TestServiceListWithoutConnections(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/services?limit=1000", 200, v1.ServiceList{Items: []v1.Service{web()}})
	a.on("GET /v1/stats", 503, problem(503, v1.CodeDataplane, "read the counters of the dataplane: timed out", ""))
	r := a.run(t, "service list")
	if r.code != command.ExitOK || !strings.Contains(r.stdout, "web ") || !strings.Contains(r.stderr, "connections unknown: read the counters") {
		t.Errorf("%s", r)
	}
	before := len(a.requests())
	for _, format := range []string{"json", "yaml", "name"} {
		if r := a.run(t, "service list -o "+format); r.code != command.ExitOK || r.stderr != "" {
			t.Errorf("%s", r)
		}
	}
	for _, q := range a.requests()[before:] {
		expect.False(t, strings.Contains(q.Line, "stats"), "a program's list asks %s", q.Line)
	}
}

func TestStatsOfNothing(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/stats", 200, v1.StatsList{Items: []v1.ServiceTotal{}})
	if r := a.run(t, "service stats"); r.code != command.ExitOK || r.stdout != "" || r.stderr != "no services in the dataplane\n" {
		t.Errorf("%s", r)
	}
	if r := a.run(t, "service stats -o json"); r.code != command.ExitOK || strings.Join(strings.Fields(r.stdout), "") != `{"items":[]}` {
		t.Errorf("%s", r)
	}
	a.on("GET /v1/services/default/gone/stats", 404, problem(404, v1.CodeNotFound, `service "gone" does not exist`, "create it first: ironvip service apply"))
	if r := a.run(t, "service stats gone"); r.code != command.ExitNotFound || !strings.Contains(r.stderr, command.SeeServices) {
		t.Errorf("%s", r)
	}
	a.on("GET /v1/stats", 503, problem(503, v1.CodeUnavailable, "this agent has no dataplane that counts", ""))
	if r := a.run(t, "service stats"); r.code != command.ExitError || !strings.Contains(r.stderr, "no dataplane that counts") {
		t.Errorf("%s", r)
	}
}
