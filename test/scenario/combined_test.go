//go:build linux

package scenario

import "github.com/ironvip/ironvip/vip"

// Combined features: each has the same effect beside the others, in one service and on one VIP.
var combined = []scenario{
	{name: "a range by tunnels of IPv6", shows: []*feature{tunnel6, portRange, outlive}, families: onlyIPv6, isolated: true, modules: []string{"ip6_tunnel"}, steps: tunneled},
	{name: "a range by tunnels of IPv4", shows: []*feature{tunnel, portRange, outlive}, isolated: true, modules: []string{"ipip"}, steps: tunneled},
	{
		name: "udp clients move by direct routing", shows: []*feature{dr, udpMove}, families: both, isolated: true,
		steps: []step{
			realServers(b1, b2),
			put(bypassed("dr", "1h", firstTwo)),
			serveVIP("web", b1, b2), serveVIP("web:7053/udp", b1, b2),
			put(bypassed("dr", "1h", first)),
			hold("x", client, "web:7053/udp", only(b1)),
			hold("t", client, "web", only(b1)),
			put(bypassed("dr", "1h", second)),
			resent("x", only(b2), kept), held("t", only(b1)),
			put(bypassed("dr", "1h", "")),
			resentInVain("x"),
			put(bypassed("dr", "1h", first)),
			resent("x", only(b1)), held("t", only(b1)),
		},
	},
	{
		name: "mh in a drain", shows: []*feature{mh, drain, states}, families: both,
		steps: []step{
			put(scheduled(vip.MaglevHash, 1, 1, 1)),
			hold("x", client, "web"),
			state("web", "x", vip.Drain),
			held("x", marked("x")),
			ask(client, "web", 2, not("x"), as("other")),
			restart(),
			inKernel(held("x", marked("x")), all()),
			ask(client, "web", 2, marked("other")),
			state("web", "x", vip.Ready),
			inKernel(held("x", marked("x")), all()),
			ask(client, "web", 2, marked("x")),
		},
	},
	{
		name: "affinity and local policies", shows: []*feature{affinity, localBoth}, families: both,
		steps: []step{
			put(placed("affinity = {}\n"+localToAll, `{ address = "{backend1}", node = "here" }, { address = "{backend2}", node = "here" }, { address = "{backend3}", node = "there" }`)),
			ask(client, "web", 3, as("c"), kept), ask(client, "web@node", 2, same, kept), ask(client, "web:7053/udp", 3, same, kept),
			put(placed("affinity = {}\n"+localToAll, `{ address = "{backend3}", node = "there" }`)),
			refused(client, "web"), refused(client, "web@node"), refused(client, "web:7053/udp"),
			put(placed("affinity = {}\n"+localToAll, `{ address = "{backend2}", node = "here" }`)),
			ask(client, "web", 2, only(b2)), ask(client, "web:7053/udp", 2, only(b2)), ask(client, "web@node", 2, only(b2)),
		},
	},
	{
		name: "affinity and local outside", shows: []*feature{affinity, localOutside}, families: both,
		steps: []step{
			serveAt(b1, "tcp", 7080), serveAt(b2, "tcp", 7080), serveAt(b3, "tcp", 7080),
			put(straight("affinity = {}\nexternal_traffic = \"local\"", `{ address = "{backend1}", node = "here" }, { address = "{backend2}", node = "there" }, { address = "{backend3}", node = "there" }`)),
			ask(client, "web", 3, only(b1), kept), ask(pod, "web", 3, as("p"), kept), ask(director, "web", 3, as("d"), replaced),
			ask(pod, "web", 2, marked("p")),
			state("web", "p", vip.Maint),
			ask(pod, "web", 2, not("p")),
		},
	},
	{
		name: "udp node ports and an address that goes", shows: []*feature{nodePorts, udpMove}, isolated: true,
		steps: []step{
			put(nodeUDP(first)),
			hostAddr("10.88.0.1/24"),
			eventually(ask(client, "dns@10.88.0.1", 1, only(b1))),
			hold("x", client, "dns@10.88.0.1", only(b1)),
			hold("y", client, "dns@node", only(b1)),
			noHostAddr("10.88.0.1/24"),
			eventually(noFrontendAt("10.88.0.1")),
			put(nodeUDP(second)),
			held("y", only(b2)),
			hostAddr("10.88.0.1/24"),
			eventually(ask(client, "dns@10.88.0.1", 1, only(b2))),
			held("x", only(b2)),
			put(nodeUDP("")),
			endedUDP("x"), endedUDP("y"),
			remove("dns"),
			endedUDP("x"), endedUDP("y"),
		},
	},
	{
		name: "udp node ports move", shows: []*feature{nodePorts, udpMove}, families: both, isolated: true,
		steps: []step{
			put(nodeUDP(first)),
			hold("x", client, "dns@node", only(b1)), hold("p", pod, "dns@node", only(b1)), hold("d", director, "dns@node", only(b1)), hold("v", client, "dns", only(b1)),
			put(nodeUDP(second)),
			held("x", only(b2)), held("p", only(b2)), moved("d", "dns@node", only(b2)), held("v", only(b2)),
		},
	},
	{
		name: "udp affinity of a backend that leaves", shows: []*feature{affinity, udpMove}, families: both,
		steps: []step{
			put(sticky(firstTwo)),
			hold("x", client, "dns"),
			ask(client, "dns", 3, marked("x")),
			put(sticky(`{ address = "{backend3}" }`)),
			held("x", only(b3)), ask(client, "dns", 2, only(b3)),
			put(sticky(firstTwo)),
			held("x", not("none")), ask(client, "dns", 2, same),
		},
	},
	{
		name: "all ports without a backend", shows: []*feature{allPorts, refusal}, families: both, isolated: true,
		steps: []step{
			put(everyPort("")),
			refused(client, "many:7022/tcp"), refused(client, "many:7081/tcp"), refused(director, "many:7022/tcp"), refused(pod, "many:7022/udp"), refused(client, "many:22/udp"),
			ask(client, "host:7022/tcp", 1, only(director)),
			put(everyPort(`{ address = "{backend1}", node = "there" }`)),
			refused(client, "many:7022/tcp"), refused(client, "many:7081/tcp"), refused(client, "many:7081/udp"),
			ask(pod, "many:7081/tcp", 1, only(b1)), ask(pod, "many:7081/udp", 1, only(b1)), ask(director, "many:7081/udp", 1, only(b1)),
		},
	},
	{
		name: "a port that the host listens on, too", shows: []*feature{localOutside, refusal}, families: both, isolated: true,
		steps: []step{
			inKernel(
				all(
					put(onHostPort(`{ address = "{backend1}", node = "there" }`)),
					refused(client, "web:7022/tcp"), refused(client, "web:7022/udp"),
					ask(pod, "web:7022/tcp", 1, only(b1)), ask(director, "web:7022/tcp", 1, only(b1)),
					put(onHostPort(`{ address = "{backend1}", node = "here" }`)),
					ask(client, "web:7022/tcp", 1, only(b1)), ask(client, "web:7022/udp", 1, only(b1)),
					put(onHostPort("")),
					refused(client, "web:7022/tcp"), refused(client, "web:7022/udp"), refused(pod, "web:7022/tcp"), refused(director, "web:7022/tcp"), refused(director, "web:7022/udp"),
					restart(),
					refused(client, "web:7022/tcp"), refused(client, "web:7022/udp"), refused(pod, "web:7022/tcp"), refused(director, "web:7022/tcp"),
				),
				put(placed(`external_traffic = "local"`, first)), // the proxy rejects the policies, and ports of other services
			),
		},
	},
	{
		name: "node ports and local outside", shows: []*feature{localOutside, nodePorts}, families: both, isolated: true,
		steps: []step{
			put(placed(`external_traffic = "local"`, hereAndThere)),
			ask(client, "web@node", 2, only(b1), kept),
			// Every client of a node port counts as outside.
			ask(pod, "web@node", 2, only(b1), kept), ask(director, "web@node", 2, only(b1), replaced),
			put(placed(`external_traffic = "local"`, `{ address = "{backend2}", node = "there" }`)),
			refused(client, "web@node"), refused(pod, "web@node"), refused(director, "web@node"),
			ask(pod, "web", 1, only(b2)),
		},
	},
	{
		name: "source ranges of a range and policies that differ", shows: []*feature{localOutside, portRange, sourceRanges}, families: both, isolated: true,
		steps: []step{
			serveAt(b1, "tcp", 7103), serveAt(b2, "tcp", 7103), serveAt(b1, "udp", 7103), serveAt(b2, "udp", 7103),
			put(guarded(`"{client}"`)),
			ask(client, "many:7103/tcp", 2, only(b1), kept), ask(client, "many:7103/udp", 2, only(b1), kept),
			refused(pod, "many:7103/tcp"), refused(pod, "many:7103/udp"),
			put(guarded(`"{net:pod}"`)),
			refused(client, "many:7103/tcp"), refused(client, "many:7103/udp"),
			ask(pod, "many:7103/tcp", 2, by(counts{b1: 1, b2: 1})), ask(pod, "many:7103/udp", 2, by(counts{b1: 1, b2: 1})),
			ask(director, "many:7103/tcp", 2, by(counts{b1: 1, b2: 1})),
		},
	},
	{
		name: "source ranges of one family", shows: []*feature{dualStack, sourceRanges}, families: both, dual: true,
		steps: []step{
			put(oneFamily(`"{net:client:4}"`)),
			func(r *run) error {
				if r.family == vip.IPv4 {
					return ask(client, "web", 1, only(b1))(r)
				}
				return refused(client, "web")(r)
			},
			refused(pod, "web"),
		},
	},
	{
		name: "forwarding changes", shows: []*feature{dr, tunnel, settings}, isolated: true, modules: []string{"ipip"},
		steps: []step{
			realServers(b1, b2),
			serveAt(b1, "tcp", 7080), serveAt(b2, "tcp", 7080), serveAt(b1, "udp", 7053), serveAt(b2, "udp", 7053),
			put(bypassed("nat", "1h", firstTwo)),
			hold("x", client, "web"), hold("u", client, "web:7053/udp"),
			put(bypassed("dr", "1h", firstTwo)),
			serveVIP("web", b1, b2), serveVIP("web:7053/udp", b1, b2),
			ask(client, "web", 2, by(counts{b1: 1, b2: 1}), kept),
			held("x", marked("x")), held("u", marked("u")),
			put(bypassed("tunnel", "1h", firstTwo)),
			ask(client, "web", 2, by(counts{b1: 1, b2: 1}), kept),
			held("x", marked("x")), held("u", marked("u")),
			put(bypassed("nat", "1h", firstTwo)),
			ask(client, "web", 2, by(counts{b1: 1, b2: 1}), replaced),
			held("x", marked("x")), held("u", marked("u")),
		},
	},
	{
		name: "a service gets another address", shows: []*feature{settings, drain}, families: both,
		steps: []step{
			put(leaving("1h", first)),
			hold("x", client, "web", only(b1)), hold("u", client, "web:7053/udp", only(b1)),
			remove("web"),
			held("x", only(b1)),
			put(leaving("1h", second)),
			held("x", only(b1)),
			ask(client, "web", 2, only(b2)), held("u", only(b2)),
		},
	},
	{
		name: "services that share a vip and differ", shows: []*feature{localBoth, sourceRanges, masqAlways}, families: both,
		steps: []step{
			put(service("one", webPort, hereAndThere, sharing, `source_ranges = [ "{net:client}" ]`, localToAll) +
				service("two", `{ port = 7080, target_port = 7081, protocol = "udp" }, { port = 7090, target_port = 7081 }`, second, sharing, `masquerade = "always"`)),
			ask(client, "one:7080/tcp", 2, only(b1), kept), refused(pod, "one:7080/tcp"), ask(pod, "one:7080/udp", 1, only(b2), replaced), ask(pod, "two:7090/tcp", 1, only(b2), replaced),
			restart(),
			remove("one"),
			refused(client, "two:7080/tcp"), ask(client, "two:7090/tcp", 1, only(b2), replaced),
		},
	},
	{
		name: "sctp leaves", shows: []*feature{sctp, nodePorts, drain}, families: both, isolated: true, modules: []string{"sctp"},
		steps: []step{
			serveAt(b1, "sctp", backendPort), serveAt(b2, "sctp", backendPort),
			put(sctpAt(first)),
			hold("x", client, "sig", only(b1)), hold("n", client, "sig@node", only(b1)),
			put(sctpAt(second)),
			held("x", only(b1)), held("n", only(b1)),
			ask(client, "sig", 2, only(b2)), ask(client, "sig@node", 2, only(b2)),
			restart(),
			held("x", only(b1)), held("n", only(b1)),
			put(sctpAt("")),
			refused(client, "sig"), refused(client, "sig@node"),
			held("x", only(b1)),
		},
	},
}

// tunneled are the steps of a range of ports by tunnels.
var tunneled = []step{
	realServers(b1, b2),
	put(ranged(firstTwo)),
	serveVIP("many:7103/tcp", b1, b2), serveVIP("many:7103/udp", b1, b2),
	ask(client, "many:7103/tcp", 2, by(counts{b1: 1, b2: 1}), kept),
	ask(pod, "many:7103/udp", 2, by(counts{b1: 1, b2: 1}), kept),
	refused(client, "many:7106/tcp"), refused(client, "many:7106/udp"),
	hold("x", client, "many:7103/tcp"), hold("u", client, "many:7103/udp"),
	restart(),
	held("x", marked("x")), held("u", marked("u")),
	put(ranged(second)),
	held("x", marked("x")), resent("u", only(b2)),
	ask(client, "many:7103/tcp", 2, only(b2)),
	put(ranged("")),
	refused(client, "many:7103/tcp"), resentInVain("u"),
}

func ranged(backends string) string {
	return service("many", rangePorts, backends, `scheduler = "rr"`, `forward = "tunnel"`, `drain_timeout = "1h"`)
}

func straight(policy, backends string) string {
	return service("web", `{ port = 7080 }`, backends, `scheduler = "rr"`, policy)
}

func nodeUDP(backends string) string {
	return service("dns", `{ port = 7053, target_port = 7081, protocol = "udp", node_port = 30053 }`, backends, `drain_timeout = "1h"`)
}

func sticky(backends string) string {
	return service("dns", `{ port = 7053, target_port = 7081, protocol = "udp" }`, backends, `scheduler = "rr"`, `affinity = { timeout = "1h" }`)
}

func everyPort(backends string) string {
	return service("many", `{ port = "all" }, { port = "all", protocol = "udp" }`, backends, `external_traffic = "local"`)
}

func onHostPort(backends string) string {
	return service("web", `{ port = 7022, target_port = 7081 }, { port = 7022, target_port = 7081, protocol = "udp" }`, backends, `external_traffic = "local"`)
}

func guarded(ranges string) string {
	return service("many", rangePorts, hereAndThere, `scheduler = "rr"`, `external_traffic = "local"`, `source_ranges = [ `+ranges+` ]`)
}

func oneFamily(ranges string) string {
	return service("web", webPort, `{ address = "{backend1:4}" }, { address = "{backend2:6}" }`, `source_ranges = [ `+ranges+` ]`)
}

func sctpAt(backends string) string {
	return service("sig", `{ port = 7080, target_port = 7081, protocol = "sctp", node_port = "auto" }`, backends, `drain_timeout = "1h"`)
}
