//go:build linux

package scenario

import "fmt"

// bypassed is a service with backends that answer the clients directly. Nothing probes them: a probe
// could come before a scenario's server, and its first result decides.
func bypassed(forward, drain, backends string) string {
	return service("web", `{ port = 7080 }, { port = 7053, protocol = "udp" }`, backends, `scheduler = "rr"`,
		fmt.Sprintf("forward = %q", forward), fmt.Sprintf("drain_timeout = %q", drain), `health = { type = "none" }`)
}

// answering returns the steps for a service with direct routing or tunnels.
func answering(forward string) []step {
	return []step{
		realServers(b1, b2, b3),
		put(bypassed(forward, "1s", firstTwo)),
		serveVIP("web", b1, b2), serveVIP("web:7053/udp", b1, b2),
		ask(client, "web", 2, by(counts{b1: 1, b2: 1}), kept),
		ask(pod, "web", 2, by(counts{b1: 1, b2: 1}), kept),
		ask(b3, "web", 2, by(counts{b1: 1, b2: 1}), kept),
		ask(client, "web:7053/udp", 2, by(counts{b1: 1, b2: 1}), kept),
		hold("x", client, "web"),
		put(bypassed(forward, "1s", `{ address = "{backend1}", state = "maint" }, { address = "{backend2}", weight = 0 }`)),
		held("x", marked("x")),
		refused(client, "web"), refused(client, "web:7053/udp"),
		put(bypassed(forward, "1s", `{ address = "{backend3}" }`)),
		ended("x"),
	}
}

// listenHere starts a server of the director at a VIP. The VIP must be there: the kernel knows it as an address of this host.
func listenHere(to string) step {
	return func(r *run) error {
		r.nodes[director].Sysctl("ipv6/ip_nonlocal_bind", "1")
		return serveVIP(to, director)(r)
	}
}

// Direct routing and tunnels between a director and real servers, with an agent on each.
var forwarding = []scenario{
	{name: "direct routing", shows: []*feature{dr}, families: both, isolated: true, steps: answering("dr")},
	{name: "tunnels", shows: []*feature{tunnel}, isolated: true, modules: []string{"ipip"}, steps: answering("tunnel")},
	{name: "tunnels of IPv6", shows: []*feature{tunnel6}, families: onlyIPv6, isolated: true, modules: []string{"ip6_tunnel"}, steps: answering("tunnel")},
	{
		name: "a VIP for a program of this host", shows: []*feature{floats}, families: both, isolated: true,
		steps: []step{
			put(service("web", `{ port = 7080 }, { port = 7053, protocol = "udp" }`, "", `forward = "host"`, `health = { type = "none" }`)),
			refused(client, "web"), // nothing listens
			listenHere("web"), listenHere("web:7053/udp"), listenHere("web:7099/tcp"),
			ask(client, "web", 2, only(director), seen(client)),
			ask(pod, "web", 2, only(director), seen(pod)),
			ask(b1, "web", 2, only(director), seen(b1)),
			ask(director, "web", 2, only(director)),
			ask(client, "web:7053/udp", 2, only(director), seen(client)),
			ask(client, "web:7099/tcp", 2, only(director), seen(client)), // a port that the service does not name
			hold("x", client, "web"),
			restart(),
			held("x", only(director)),
		},
	},
	{
		name: "one packet", shows: []*feature{onePacket}, families: both, isolated: true,
		steps: []step{
			realServers(b1, b2),
			put(service("dns", `{ port = 7053, protocol = "udp" }`, firstTwo, `scheduler = "rr"`, `scheduler_flags = [ "one-packet" ]`, `forward = "dr"`)),
			serveVIP("dns", b1, b2),
			hold("x", client, "dns"),
			heldFor("x", 4, by(counts{b1: 2, b2: 2}), kept),
		},
	},
	{
		name: "a range of ports by direct routing", shows: []*feature{dr, portRange}, isolated: true,
		steps: []step{
			realServers(b1, b2),
			put(service("many", `{ port = "7101-7105" }`, firstTwo, `scheduler = "rr"`, `forward = "dr"`)),
			serveVIP("many:7103/tcp", b1, b2),
			ask(client, "many:7103/tcp", 2, by(counts{b1: 1, b2: 1}), kept),
			refused(client, "many:7106/tcp"),
		},
	},
}
