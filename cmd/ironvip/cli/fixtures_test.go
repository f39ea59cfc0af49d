package cli

import (
	"net/netip"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip/spec"
)

// The canned responses are those of the node in the docs and samples.

func ago(d time.Duration) *time.Time { t := now.Add(-d); return &t }

func addrs(in ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range in {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func nodeStatus() v1.NodeStatus {
	return v1.NodeStatus{
		Node: "lb1", Version: "0.1.0", Started: now.Add(-99 * time.Hour), Uptime: int64((99 * time.Hour).Seconds()),
		Level: v1.LevelWarn, Ready: true, Services: 35, Revision: 214, Next: "ironvip source list",
		Checks: []v1.Check{
			{Name: "config", Level: v1.LevelOK, Message: "revision 214, reloaded 2h ago"},
			{Name: "sources", Level: v1.LevelWarn, Message: "static 4 services, remote 31 (stale 4m: dial unix /run/remote.sock: no such file)"},
			{Name: "dataplane", Level: v1.LevelOK, Message: "ipvs, in sync: 47 services, 212 backends, 0 drift"},
			{Name: "pools", Level: v1.LevelOK, Message: "public-v4 41 of 59 used"},
			{Name: "store", Level: v1.LevelWarn, Message: "consul at 127.0.0.1:8500 in touch, 3 problems", More: 1, Problems: []v1.Problem{
				{Code: "invalid", Place: "consul:ironvip/v2/tree/leases/banana", Message: "not a value of ironvip's", Hint: "remove it: consul kv delete ironvip/v2/tree/leases/banana"},
				{Code: "invalid", Place: "consul:ironvip/v2/tree/leases/192.0.2.40", Message: "the value can't be read"}}},
		},
	}
}

func healthyStatus() v1.NodeStatus {
	s := nodeStatus()
	s.Level, s.Next, s.Checks = v1.LevelOK, "", s.Checks[:4]
	s.Checks[1] = v1.Check{Name: "sources", Level: v1.LevelOK, Message: "static 4 services"}
	return s
}

func web() v1.Service {
	timeout := spec.Duration(3 * time.Hour)
	drain := spec.Duration(time.Minute)
	interval, slow := spec.Duration(10*time.Second), spec.Duration(30*time.Second)
	return v1.Service{
		Spec: v1.ServiceSpec{Name: "web", Namespace: "default", Labels: map[string]string{"team": "shop", "app": "web"},
			Hostnames: []string{"shop.example.com"}, Scheduler: "wrr",
			Forward: "nat", Affinity: &spec.Affinity{Timeout: &timeout}, DrainTimeout: &drain,
			Health: &spec.HealthCheck{Type: "http", Path: "/healthz", Interval: &interval}, OnUnhealthy: "reset", PanicThreshold: 30, SlowStart: &slow,
			Ports: []spec.Port{{Name: "http", Protocol: "tcp", Port: spec.PortRange{First: 80}}}},
		Status: v1.ServiceStatus{
			State: v1.StateHealthy, Summary: "web is healthy: all of its 3 backends take new connections.", Revision: 214, SpecRev: 210, Applied: true,
			VIPs: addrs("192.0.2.10"), Pool: "public-v4", Since: ago(12 * 24 * time.Hour), Usable: 3,
			Names: []string{"web.default.svc.vip.internal", "web.vip.internal", "shop.example.com"},
			Ports: []v1.PortStatus{
				{Name: "http", Protocol: "tcp", Port: 80, TargetPort: 8080, NodePort: 30080},
				{Name: "https", Protocol: "tcp", Port: 443, TargetPort: 8443},
				{Name: "quic", Protocol: "udp", Port: 443, TargetPort: 8443},
			},
			Backends: []v1.BackendStatus{
				{ID: "10.1.0.11", Address: "10.1.0.11", Weight: 1, State: "ready", SlowStart: 30, Usable: true, Health: "healthy", Check: "http", HealthSince: ago(12 * 24 * time.Hour), Node: "host-1", Zone: "a"},
				{ID: "10.1.0.12", Address: "10.1.0.12", Weight: 50, State: "ready", Usable: true, Health: "healthy", Held: true, HeldUntil: ago(-18 * time.Second), Serving: true, Check: "http", HealthSince: ago(12 * time.Second),
					HealthReason: "no answer within 1s", LastError: "no answer within 1s", LastErrorAt: ago(2 * time.Second)},
				{ID: "10.1.0.13:8080", Address: "10.1.0.13", Port: 8080, Weight: 1, State: "ready", Usable: true, Health: "healthy", Check: "source", TTL: "10s",
					ExpiresAt: ago(-8 * time.Second), RemovedAt: ago(-5 * time.Minute)},
				{ID: "10.1.0.14", Address: "10.1.0.14", State: "drain", LeavingAt: ago(-41 * time.Second)},
			},
			Problems: []v1.Problem{},
		},
		Source: "static", Origin: "services.d/web.toml:7", Revision: 214, ETag: `"210.214"`,
	}
}

func db() v1.Service {
	return v1.Service{
		Spec: v1.ServiceSpec{Name: "db", Namespace: "shop", Scheduler: "mh", SchedulerFlags: []string{"fallback"}, Forward: "nat",
			Hostnames: []string{"db.example.com"}, ProxyProtocol: "v2", AcceptProxyFrom: []string{"192.0.2.0/28"}},
		Status: v1.ServiceStatus{
			State: v1.StateDegraded, Summary: "shop/db is degraded: 1 of 2 backends takes new connections.", Revision: 99, SpecRev: 90,
			VIPs: addrs("192.0.2.11", "2001:db8::11"), Pool: "public", Since: ago(3*time.Hour + 5*time.Minute), Usable: 1,
			Ports: []v1.PortStatus{{Name: "5432/tcp", Protocol: "tcp", Port: 5432, TargetPort: 5432}},
			Backends: []v1.BackendStatus{
				{ID: "10.1.0.21:5432", Address: "10.1.0.21", Port: 5432, Weight: 1, State: "ready", Usable: true, Health: "unknown", Check: "tcp", HealthSince: ago(time.Second)},
				{ID: "10.1.0.22:5432", Address: "10.1.0.22", Port: 5432, Weight: 1, State: "maint", SourceState: "ready", Health: "unhealthy", Check: "tcp", HealthSince: ago(12 * time.Minute), HealthReason: "connect: connection refused", HealthHint: "start the service on the backend, or correct its port", LastError: "connect: connection refused", LastErrorAt: ago(time.Second),
					Override: &v1.OverrideInfo{Author: "root", Node: "lb1", Since: ago(5 * time.Minute), Expires: ago(-2 * time.Hour)}},
			},
			Problems: []v1.Problem{{Code: "address_taken", Field: "vips[0]", Message: "192.0.2.12 is held by api",
				Hint: "ask for another address, or give both services one share_key"}},
		},
		Source: "rest", Revision: 99,
	}
}

// media returns a service with features that most services lack: ranges, policies, source ranges.
func media() v1.Service {
	return v1.Service{
		Spec: v1.ServiceSpec{Name: "media", Namespace: "default", Scheduler: "sed", SchedulerFlags: []string{"one-packet"}, Forward: "dr",
			ExternalTraffic: "local", InternalTraffic: "cluster", Distribution: "same-zone", Masquerade: "never",
			SourceRanges: []string{"10.0.0.0/8", "192.0.2.7/32"}, HealthPort: spec.NodePort{Auto: true},
			Ports: []spec.Port{{Protocol: "udp", Port: spec.PortRange{First: 10000, Last: 10099}}, {Protocol: "udp", Port: spec.PortRange{First: 5060}}}},
		Status: v1.ServiceStatus{
			State: v1.StateDegraded, Summary: "media is degraded: 1 of 2 backends take new connections.", Revision: 230, SpecRev: 229, Applied: true,
			VIPs: addrs("192.0.2.12"), Pool: "public-v4", Since: ago(time.Hour), Usable: 1, Health: 30087,
			Ports: []v1.PortStatus{
				{Name: "10000-10099/udp", Protocol: "udp", Port: 10000, LastPort: 10099},
				{Name: "5060/udp", Protocol: "udp", Port: 5060, TargetPort: 5060},
			},
			Backends: []v1.BackendStatus{{ID: "10.1.0.31", Address: "10.1.0.31", Weight: 1, State: "ready", Usable: true, Health: "unchecked", Zone: "a"},
				{ID: "10.1.0.32", Address: "10.1.0.32", Weight: 1, State: "terminating", Zone: "a"}},
			Problems: []v1.Problem{},
		},
		Source: "rest", Revision: 230,
	}
}

func dnsNames() v1.DNSNameList {
	answered := func(name, kind, service string, age time.Duration, addresses ...string) v1.DNSName {
		return v1.DNSName{Name: name, Kind: kind, Service: service, Addresses: addrs(addresses...), State: v1.NameAnswered, Since: ago(age)}
	}
	new := v1.DNSName{Name: "new.vip.internal", Kind: v1.NameShort, Service: "new", Addresses: addrs(), State: v1.NameAnswered}
	shop := answered("shop.example.com", v1.NameHostname, "web", 3*time.Hour, "192.0.2.10")
	shop.State, shop.Winner = v1.NameConflict, "shop/db"
	reserved := answered("svc.vip.internal", v1.NameHostname, "web", 3*time.Hour, "192.0.2.10")
	reserved.State = v1.NameConflict
	held := answered("www.example.com", v1.NameHostname, "web", 3*time.Hour, "192.0.2.10")
	held.State, held.Winner = v1.NameUndecided, "shop/db"
	unreadable := answered("www.example.net", v1.NameHostname, "web", 3*time.Hour, "192.0.2.10")
	unreadable.State = v1.NameUndecided
	return v1.DNSNameList{Domain: "vip.internal", Listen: []string{"127.0.0.1:8653"}, Revision: 230, Items: []v1.DNSName{
		answered("db.shop.svc.vip.internal", v1.NameCanonical, "shop/db", 12*24*time.Hour, "192.0.2.11", "2001:db8::11"), new,
		answered("shop.example.com", v1.NameHostname, "shop/db", 12*24*time.Hour, "192.0.2.11", "2001:db8::11"), shop, reserved,
		answered("web.vip.internal", v1.NameShort, "web", 3*time.Hour, "192.0.2.10"), held, unreadable}}
}

func dnsAnswer() v1.DNSAnswer {
	return v1.DNSAnswer{Name: "shop.example.com", Type: "A", RCode: "NOERROR", Why: "a hostname of service shop/db", Service: "shop/db", Conflicts: dnsNames().Items[3:4],
		Answer: []v1.DNSRecord{{Name: "shop.example.com", TTL: 30, Type: "A", Data: "192.0.2.11"}}, Authority: []v1.DNSRecord{}, Additional: []v1.DNSRecord{}}
}

func waiting() v1.Service {
	return v1.Service{
		Spec:   v1.ServiceSpec{Name: "late", Namespace: "default", Scheduler: "rr"},
		Status: v1.ServiceStatus{State: v1.StatePending, Summary: "late is pending: the requested address is not available.", Ports: []v1.PortStatus{}},
		Source: "rest", Revision: 230,
	}
}

func overrides() v1.OverrideList {
	return v1.OverrideList{Revision: 99, Items: []v1.Override{
		{Service: "shop/db", Backend: "10.1.0.22:5432", State: "maint", Revision: 98,
			OverrideInfo: v1.OverrideInfo{Author: "root", Node: "lb1", Since: ago(5 * time.Minute), Expires: ago(-2 * time.Hour)}},
		{Service: "web", Backend: "10.1.0.19", State: "drain", Missing: true, Revision: 42,
			OverrideInfo: v1.OverrideInfo{Author: "tcp 127.0.0.1", Since: ago(3 * 24 * time.Hour)}},
		{Service: "web", Backend: "10.1.0.20", State: "ready", Revision: 43,
			OverrideInfo: v1.OverrideInfo{Author: "ann", Node: "lb1", Since: ago(time.Minute), Local: true}},
	}}
}

func vips() v1.VIPList {
	until := now.Add(4 * time.Minute)
	return v1.VIPList{Revision: 300, Items: []v1.VIP{
		{Kind: v1.KindAddress, Address: "192.0.2.10", Pool: "public-v4", State: "held", Since: now.Add(-12 * 24 * time.Hour), Revision: 7,
			Holders: []v1.VIPHolder{{Service: "web", Source: "static"}}},
		{Kind: v1.KindAddress, Address: "192.0.2.11", Pool: "public-v4", State: "held", ShareKey: "edge", Since: now.Add(-3 * time.Hour), Revision: 8,
			Holders: []v1.VIPHolder{{Service: "shop/db", Source: "rest"}, {Service: "shop/cache", Source: "rest"}}, Reservation: &v1.VIPReservation{For: "shop/db", Since: now.Add(-time.Hour)}},
		{Kind: v1.KindAddress, Address: "192.0.2.40", Pool: "public-v4", State: "cooling", Since: now.Add(-time.Hour), Until: &until, Revision: 9,
			Holders: []v1.VIPHolder{{Service: "gone", Source: "rest"}}},
		{Kind: v1.KindAddress, Address: "192.0.2.41", Pool: "public-v4", State: "reserved", Since: now.Add(-time.Hour), Revision: 11,
			Holders: []v1.VIPHolder{}, Reservation: &v1.VIPReservation{For: "web", Since: now.Add(-time.Hour)}},
		{Kind: v1.KindAddress, Address: "192.0.2.42", Pool: "public-v4", State: "reserved", Since: now.Add(-time.Minute), Revision: 12,
			Holders: []v1.VIPHolder{}, Reservation: &v1.VIPReservation{Since: now.Add(-time.Minute)}},
		{Kind: v1.KindAddress, Address: "192.0.2.43", Pool: "public-v4", State: "held", Since: now.Add(-time.Minute), Revision: 13,
			Holders: []v1.VIPHolder{{Service: "mail", Source: "static"}}, Reservation: &v1.VIPReservation{For: "web", Since: now.Add(-time.Minute)}},
		{Kind: v1.KindNodePort, NodePort: 30080, Protocol: "tcp", State: "held", Since: now.Add(-12 * 24 * time.Hour), Revision: 10,
			Holders: []v1.VIPHolder{{Service: "web", Source: "static", Port: "80/tcp"}}},
	}}
}

func pools() v1.PoolList {
	return v1.PoolList{Items: []v1.Pool{
		{Name: "public-v4", CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Exclude: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")},
			AutoAssign: true, Size: 238, Used: 41, UsedBy: []v1.NamespaceUse{{Namespace: "default", Addresses: 40}, {Namespace: "shop", Addresses: 1}}, Cooling: 1, Reserved: 2, HeldOut: 2, HeldRanges: []v1.HeldOut{
				{Prefix: netip.MustParsePrefix("192.0.2.16/32"), Reason: "gateway", Message: "a gateway of this host"},
				{Prefix: netip.MustParsePrefix("192.0.2.17/32"), Reason: "own_address", Message: "this host's own address on eth0"}}, Free: 194, Alarms: []v1.Problem{}},
		{Name: "v6", CIDRs: []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64")}, Size: 1<<53 - 1, Used: 1204, Free: 1<<53 - 1,
			Alarms: []v1.Problem{{Code: "overlap", Message: "2001:db8:1::/64 overlaps the route 2001:db8::/32 of br0", Hint: "choose another range"}}},
	}}
}

func sourceList() v1.SourceList {
	return v1.SourceList{Revision: 214, Items: []v1.Source{
		{Name: "rest", Type: "rest", Level: v1.LevelOK, Synced: true, Services: 31, LastSync: ago(5 * time.Second), Problems: []v1.Problem{}, Revision: 200},
		{Name: "static", Type: "static", Level: v1.LevelWarn, Synced: true, Stale: "read /etc/ironvip/services.d: permission denied", Services: 4,
			LastSync: ago(4 * time.Minute), Restarts: 3, Revision: 214,
			Problems: []v1.Problem{{Code: "unknown_key", Place: "services.d/web.toml:7", Service: "web", Field: "prot", Message: "unknown key", Hint: `did you mean "protocol"?`}}},
	}}
}

func nodes() v1.NodeList {
	return v1.NodeList{Store: "consul", Items: []v1.Node{
		{Name: "lb0", State: v1.NodeLost, Since: ago(2 * 24 * time.Hour), Draining: true},
		{Name: "lb1", State: v1.NodePresent, VIPCount: new(4), Self: true, Version: "0.1.0", Dataplane: "ipvs", Services: 1204, Frontends: 1511, Revision: 214, Index: 90412,
			Started: ago(4*24*time.Hour + 3*time.Hour), Seen: ago(2 * time.Second)},
		{Name: "lb2", State: v1.NodePresent, VIPCount: new(0), Draining: true, Elected: true, Version: "0.1.0", Dataplane: "ipvs", Services: 1204, Frontends: 1511, Problems: 1, Revision: 8811, Lag: 1250, Index: 90412,
			Started: ago(2 * time.Hour), Seen: ago(4 * time.Second)},
		{Name: "lb3", State: v1.NodePresent, Version: "0.1.0", Dataplane: "proxy", Services: 1200, Frontends: 1507, Revision: 97, Index: 90380, Seen: ago(3 * time.Minute)},
		{Name: "lb4", State: v1.NodeLost, Since: ago(12 * time.Minute), VIPCount: new(4), VIPs: []netip.Addr{
			netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("2001:db8::1")}},
	}}
}

func shownPlane() v1.Dataplane {
	return v1.Dataplane{Mode: "ipvs", Reason: "the kernel has IPVS and we may use it", Level: v1.LevelWarn, Summary: "1 of 3 frontends pending",
		Ready: true, DesiredRevision: 214, AppliedRevision: 210, Frontends: 3, Backends: 6, Pending: 1, Repairs: 2, LastResync: ago(20 * time.Second),
		Problems: []v1.Problem{}, Findings: []v1.Finding{{Level: v1.LevelFail, Name: "net.ipv4.vs.conntrack",
			Message: "net.ipv4.vs.conntrack = 0, needs 1 for nat", Fix: "sysctl -w net.ipv4.vs.conntrack=1"}},
		Leaving: []v1.LeavingDataplane{{Mode: "proxy", Connections: 2, Until: ago(-9 * time.Minute)}, {Mode: "nft", Problem: "count the connections of nft: netlink: timeout"}}}
}

func frontends() v1.FrontendList {
	return v1.FrontendList{Revision: 214, Items: []v1.Frontend{
		{Address: "192.0.2.10:80", Protocol: "tcp", Kind: "vip", Service: "web", Port: "http", Scheduler: "wrr", Forward: "nat", Affinity: "3h",
			Masquerade: "auto", Revision: 210, Applied: true, AppliedRevision: 210, AppliedAt: ago(time.Minute),
			Warning: &v1.Problem{Code: "contested", Message: "somebody else keeps changing it: 5 times since 2026-11-08T11:13:07Z", Hint: "ironvip doctor"},
			Backends: []v1.Endpoint{{Address: "10.1.0.11:8080", Weight: 1}, {Address: "10.1.0.12:8080", Weight: 50},
				{Address: "10.1.0.13:8080", Weight: 1}, {Address: "10.1.0.14:8080", LeavingAt: ago(-41 * time.Second)}}},
		{Address: "192.0.2.11:5432", Protocol: "tcp", Kind: "vip", Service: "shop/db", Port: "5432/tcp", Scheduler: "mh", Flags: []string{"fallback"},
			Forward: "nat", Masquerade: "auto", Revision: 214, Backends: []v1.Endpoint{{Address: "10.1.0.21:5432", Weight: 1}}},
		{Address: "192.0.2.12:10000-10099", Protocol: "udp", Audience: "internal", Kind: "vip", Service: "media", Port: "10000-10099/udp", Scheduler: "sed",
			Flags: []string{"one-packet"}, Forward: "dr", Masquerade: "never", Sources: []string{"10.0.0.0/8"}, Revision: 212, Applied: true, AppliedRevision: 212,
			Backends: []v1.Endpoint{{Address: "10.1.0.31", Weight: 1}}},
		{Address: "198.51.100.1:30080", Protocol: "tcp", Kind: "node-port", Service: "web", Port: "http", Scheduler: "wrr", Forward: "nat",
			Masquerade: "auto", Revision: 205, Backends: []v1.Endpoint{},
			Problem: &v1.Problem{Code: "dataplane", Message: "program 198.51.100.1:30080/tcp: address in use", Hint: "stop what listens there"}},
	}}
}

func diff() v1.DataplaneDiff {
	return v1.DataplaneDiff{Items: []v1.DiffEntry{
		{Frontend: "192.0.2.10:80/tcp", Service: "web", Action: v1.ActionRepair, Details: []string{"address 192.0.2.10 missing from ironvip0"}},
		{Frontend: "192.0.2.11:5432/tcp", Service: "shop/db", Action: v1.ActionChange, Details: []string{"scheduler rr, wants mh", "backend 10.1.0.21:5432 missing"}},
		{Frontend: "192.0.2.99:80/tcp", Action: v1.ActionRemove, Details: []string{"belongs to no service"}},
	}}
}

func plan() v1.Plan {
	return v1.Plan{Add: 1, Change: 1, Remove: 1, Problems: []v1.Problem{}, Warnings: []v1.Problem{}, Changes: []v1.PlanChange{
		{Action: v1.ActionAdd, Kind: "service", Name: "api", Detail: "192.0.2.12 (new, from public-v4) 443/tcp, 2 backends"},
		{Action: v1.ActionChange, Kind: "service", Name: "web", Detail: "scheduler wrr -> mh", Impact: "open connections keep their backend"},
		{Action: v1.ActionRemove, Kind: "backend", Name: "web/10.1.0.13", Detail: "41 open connections drain up to 60s"},
	}}
}

func events() []v1.Event {
	return []v1.Event{
		{ID: 41, Time: now.Add(-2 * time.Hour), Kind: "backend_drained", Service: "web", Object: "10.1.0.14", Message: "the last connection has gone"},
		{ID: 42, Time: now.Add(-30 * time.Second), Kind: "drift_repaired", Service: "shop/db", Object: "192.0.2.11:5432/tcp", Message: "scheduler was rr"},
	}
}

// web2 returns the service that the apply tests write in every format.
func web2() *spec.Service {
	return &spec.Service{Name: "web", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}, Backends: []spec.Backend{{Address: "10.1.0.11"}}}
}

func sameAddr(a, b netip.Addr) bool { return a == b }
