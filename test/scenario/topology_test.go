//go:build linux

package scenario

// placed is a service with a policy and with backends at these locations.
func placed(policy, backends string) string {
	return service("web", nodePortAndUDP, backends, `scheduler = "rr"`, policy)
}

const localToAll = "external_traffic = \"local\"\ninternal_traffic = \"local\""

// The backends that clients may reach from this node, which is named here and is in zone za. Which these are is decided
// above the dataplane, and tested there.
var topology = []scenario{
	{
		name: "local for everybody", shows: []*feature{localBoth}, families: both,
		steps: []step{
			put(placed(localToAll, hereAndThere)),
			ask(client, "web", 2, only(b1), kept),
			ask(pod, "web", 2, only(b1), kept),
			ask(director, "web", 2, only(b1), replaced),
			ask(b1, "web", 2, only(b1), replaced),
			ask(b2, "web", 2, only(b1), kept),
			ask(client, "web@node", 2, only(b1), kept),
			ask(client, "web:7053/udp", 2, only(b1), kept),
			// Terminating backends of this node serve as substitutes. Terminating backends on other
			// nodes never do.
			put(placed(localToAll, `{ address = "{backend1}", node = "here", state = "terminating" }, { address = "{backend2}", node = "there" }`)),
			ask(client, "web", 2, only(b1)),
			put(placed(localToAll, `{ address = "{backend1}", node = "here", state = "maint" }, { address = "{backend2}", node = "there" }`)),
			refused(client, "web"), refused(pod, "web"), refused(director, "web"), refused(client, "web@node"),
			refused(client, "web:7053/udp"), refused(director, "web:7053/udp"),
			put(placed(localToAll, `{ address = "{backend2}", node = "there" }`)),
			refused(client, "web"), refused(director, "web"), refused(client, "web:7053/udp"),
		},
	},
	{
		name: "local by the address", shows: []*feature{localBoth}, isolated: true,
		steps: []step{
			put(placed(localToAll, `{ address = "{director}" }, { address = "{backend2}" }`)),
			ask(client, "web", 2, only(director), kept),
			ask(client, "web:7053/udp", 2, only(director), kept),
		},
	},
	{
		name: "local outside alone", shows: []*feature{localOutside}, families: both,
		steps: []step{
			put(placed(`external_traffic = "local"`, hereAndThere)),
			ask(client, "web", 2, only(b1), kept),
			ask(client, "web@node", 2, only(b1), kept),
			ask(pod, "web", 2, by(counts{b1: 1, b2: 1}), kept),
			ask(director, "web", 2, by(counts{b1: 1, b2: 1}), replaced),
			ask(client, "web:7053/udp", 2, only(b1), kept),
			ask(pod, "web:7053/udp", 2, by(counts{b1: 1, b2: 1}), kept),
			ask(director, "web:7053/udp", 2, by(counts{b1: 1, b2: 1}), replaced),
			put(placed(`external_traffic = "local"`, `{ address = "{backend2}", node = "there" }`)),
			refused(client, "web"), refused(client, "web:7053/udp"),
			ask(pod, "web", 1, only(b2)), ask(director, "web", 1, only(b2)),
		},
	},
	{
		name: "local inside alone", shows: []*feature{localOutside},
		steps: []step{
			put(placed(`internal_traffic = "local"`, hereAndThere)),
			ask(client, "web", 2, by(counts{b1: 1, b2: 1}), replaced),
			ask(pod, "web", 2, only(b1), kept),
			ask(director, "web", 2, only(b1), replaced),
			put(placed(`internal_traffic = "local"`, `{ address = "{backend2}", node = "there" }`)),
			ask(client, "web", 1, only(b2)),
			refused(pod, "web"), refused(director, "web"), refused(pod, "web:7053/udp"),
		},
	},
	{
		name: "affinity inside", shows: []*feature{stickyInside},
		steps: []step{
			put(placed("affinity = {}\nexternal_traffic = \"local\"", hereAndThere)),
			ask(client, "web", 2, only(b1)),
			ask(pod, "web", 2, as("chosen")), ask(pod, "web", 2, marked("chosen")),
		},
	},
	{
		name: "same zone", shows: []*feature{sameZone},
		steps: []step{
			put(placed(`traffic_distribution = "same-zone"`,
				`{ address = "{backend1}", zone = "za" }, { address = "{backend2}", zone = "zb" }, { address = "{backend3}", zone = "za" }`)),
			ask(client, "web", 4, by(counts{b1: 2, b3: 2})),
		},
	},
	{
		name: "same node", shows: []*feature{sameNode},
		steps: []step{
			put(placed(`traffic_distribution = "same-node"`,
				`{ address = "{backend1}", node = "here", zone = "za" }, { address = "{backend2}", node = "there", zone = "za" }, { address = "{backend3}", node = "there", zone = "zb" }`)),
			ask(client, "web", 2, only(b1)),
		},
	},
	{
		name: "topology hints", shows: []*feature{hints}, families: both,
		steps: []step{
			put(placed("", `{ address = "{backend1}", for_zones = ["za", "zb"] }, { address = "{backend2}", for_zones = ["zb"] }, { address = "{backend3}", for_zones = ["za"] }`)),
			ask(client, "web", 4, by(counts{b1: 2, b3: 2})),
			ask(client, "web@node", 2, by(counts{b1: 1, b3: 1})),
		},
	},
	{
		name: "each port has its backends", shows: []*feature{somePorts}, families: both,
		steps: []step{
			put(placed("", `{ address = "{backend1}", ports = ["7080/tcp"] }, { address = "{backend2}" }, { address = "{backend3}", ports = ["7053/udp"], state = "drain" }`)),
			ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
			ask(client, "web@node", 2, by(counts{b1: 1, b2: 1})),
			ask(client, "web:7053/udp", 2, only(b2)),
			put(placed("", `{ address = "{backend1}", ports = ["7080/tcp"] }`)),
			ask(client, "web", 2, only(b1)),
			refused(client, "web:7053/udp"),
		},
	},
}
