//go:build linux

package scenario

import (
	"fmt"

	"github.com/ironvip/ironvip/vip"
)

// leaving is a service with changing backends.
func leaving(drain, backends string) string {
	return service("web", bothPorts, backends, `scheduler = "rr"`, fmt.Sprintf("drain_timeout = %q", drain))
}

// The effects of changes on open connections.
var changes = []scenario{
	{
		name: "a backend leaves and returns", shows: []*feature{drain, states}, families: both,
		steps: []step{
			put(leaving("1h", first)),
			hold("x", client, "web", only(b1)),
			put(leaving("1h", second)),
			held("x", only(b1)),
			ask(client, "web", 3, only(b2)),
			put(leaving("1h", firstTwo)),
			held("x", only(b1)),
			ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
			put(leaving("1h", `{ address = "{backend1}", state = "maint" },`+second)),
			held("x", only(b1)),
			ask(client, "web", 3, only(b2)),
			put(leaving("1h", `{ address = "{backend1}", weight = 0 },`+second)),
			held("x", only(b1)),
			ask(client, "web", 3, only(b2)),
		},
	},
	{
		name: "a backend leaves for good", shows: []*feature{drain}, families: both,
		steps: []step{
			put(leaving("1s", first)),
			hold("x", client, "web", only(b1)),
			put(leaving("1s", second)),
			ask(client, "web", 2, only(b2)),
			ended("x"),
			ask(client, "web", 2, only(b2)),
		},
	},
	{
		name: "a backend that is idle leaves", shows: []*feature{drain}, families: both,
		steps: []step{
			put(leaving("1h", firstTwo)),
			hold("x", client, "web"), hold("y", client, "web"),
			put(leaving("1h", `{ address = "{backend3}" }`)),
			release("x", "y"),
			eventually(endpoints("web:7080/tcp", b3)),
		},
	},
	{
		name: "the last backend leaves", shows: []*feature{drain, refusal}, families: both,
		steps: []step{
			put(leaving("1h", first)),
			hold("x", client, "web", only(b1)),
			put(leaving("1h", "")),
			refused(client, "web"),
			held("x", only(b1)),
		},
	},
	{
		name: "a service leaves", shows: []*feature{drain}, families: both,
		steps: []step{
			put(leaving("1h", first)),
			hold("x", client, "web", only(b1)),
			put(leaving("1h", first) + service("gone", `{ port = 7090, target_port = 7081 }`, first)),
			ask(client, "gone", 1, only(b1)),
			remove("web"),
			held("x", only(b1)),
			ask(client, "gone", 1, only(b1)),
		},
	},
	{
		name: "udp clients move at once", shows: []*feature{udpMove}, families: both,
		steps: []step{
			put(leaving("1h", first)),
			hold("x", client, "web:7053/udp", only(b1)),
			hold("y", director, "web:7053/udp", only(b1)),
			put(leaving("1h", second)),
			held("x", only(b2)), moved("y", "web:7053/udp", only(b2)),
			put(leaving("1h", "")),
			endedUDP("x"),
			put(leaving("1h", first)),
			held("x", only(b1)),
			remove("web"),
			put(leaving("1h", second)),
			held("x", only(b2)),
		},
	},
	{
		name: "udp clients of backends taken out", shows: []*feature{states, udpMove}, families: both,
		steps: []step{
			put(leaving("1h", first)),
			hold("x", client, "web:7053/udp", only(b1)),
			put(leaving("1h", `{ address = "{backend1}", state = "maint" }, `+second)),
			held("x", only(b2)),
			put(leaving("1h", first+`, { address = "{backend2}", state = "drain" }`)),
			held("x", only(b1)),
			put(leaving("1h", `{ address = "{backend1}", weight = 0 }, `+second)),
			held("x", only(b2)),
			put(leaving("1h", `{ address = "{backend1}", state = "terminating" }, { address = "{backend2}", state = "maint" }`)),
			held("x", only(b1)),
		},
	},
	{
		name: "the agent restarts", shows: []*feature{outlive}, families: both,
		steps: []step{
			put(leaving("1h", firstTwo)),
			hold("x", client, "web"), hold("u", client, "web:7053/udp"),
			restart(),
			inKernel(all(held("x", marked("x")), held("u", marked("u"))), ended("x")),
			ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
			ask(client, "web:7053/udp", 2, by(counts{b1: 1, b2: 1})),
			remove("web"),
		},
	},
	{
		name: "the agent restarts in a drain", shows: []*feature{drain, outlive}, families: both,
		steps: []step{
			put(leaving("1h", first)),
			hold("x", client, "web", only(b1)),
			put(leaving("1h", second)),
			restart(),
			inKernel(held("x", only(b1)), ended("x")),
			ask(client, "web", 2, only(b2)),
			put(leaving("1h", firstTwo)),
			ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
			inKernel(held("x", only(b1)), all()),
		},
	},
	{
		name: "settings change", shows: []*feature{settings}, families: both,
		steps: []step{
			put(changing(`scheduler = "rr"`)),
			hold("x", client, "web"), hold("p", pod, "web"), hold("d", director, "web"),
			eachScheduler(goOn),
			put(changing("scheduler = \"rr\"\naffinity = { timeout = \"1h\" }")), goOn,
			put(changing(`masquerade = "always"`)), goOn,
			put(changing("source_ranges = [ \"192.0.2.0/24\", \"2001:db8::/32\" ]")), goOn,
			refused(client, "web"),
			put(changing(localToAll)), goOn,
			put(changing(``)), goOn,
			ask(client, "web", 24, anyOf(b1, b2)),
		},
	},
	{
		name: "policies part and meet", shows: []*feature{localOutside, drain},
		steps: []step{
			put(changing(``)),
			hold("x", client, "web"), hold("p", pod, "web"), hold("d", director, "web"),
			put(changing(`external_traffic = "local"`)), goOn,
			hold("q", pod, "web"),
			put(changing(``)), goOn,
			on{
				kernel:   ended("q"), // with the frontend for clients inside
				nftables: held("q", marked("q")),
			}.step,
			ask(client, "web", 24, anyOf(b1, b2)), ask(pod, "web", 24, anyOf(b1, b2)),
		},
	},
	{
		name: "the target port changes", shows: []*feature{drain},
		steps: []step{
			serveAt(b1, "tcp", 7082),
			put(leaving("1h", first)),
			hold("x", client, "web", only(b1)),
			put(leaving("1h", `{ address = "{backend1}", port = 7082 }`)),
			held("x", only(b1)),
			ask(client, "web", 2, only(b1)),
		},
	},
	{
		name: "the agent restarts with ranges", shows: []*feature{portRange, localOutside, outlive},
		steps: []step{
			serveAt(b1, "tcp", 7103), serveAt(b2, "tcp", 7103),
			put(service("many", `{ port = "7101-7105" }, { port = 7080, target_port = 7081 }`, hereAndThere, `scheduler = "rr"`, `external_traffic = "local"`)),
			ask(client, "many:7103/tcp", 2, only(b1), kept),
			ask(pod, "many:7103/tcp", 2, by(counts{b1: 1, b2: 1}), kept),
			ask(director, "many:7103/tcp", 2, by(counts{b1: 1, b2: 1}), replaced),
			ask(client, "many:7080/tcp", 2, only(b1), kept),
			hold("x", client, "many:7103/tcp"), hold("p", pod, "many:7103/tcp"), hold("d", director, "many:7080/tcp"),
			restart(),
			goOn,
			ask(client, "many:7103/tcp", 2, only(b1), kept),
			ask(pod, "many:7103/tcp", 2, by(counts{b1: 1, b2: 1}), kept),
			refused(client, "many:7106/tcp"),
			put(service("many", `{ port = "7101-7103" }`, hereAndThere, `drain_timeout = "1h"`)),
			ask(client, "many:7103/tcp", 2, by(counts{b1: 1, b2: 1}), replaced),
			refused(client, "many:7104/tcp"),
		},
	},
}

// changing is a service with a setting.
func changing(setting string) string {
	return service("web", webPort, `{ address = "{backend1}", node = "here" }, { address = "{backend2}", node = "here" }`, setting)
}

// eachScheduler takes a step with each scheduler that the dataplane has.
func eachScheduler(then step) step {
	return func(r *run) error {
		for _, s := range vip.Schedulers() {
			if why, err := r.dataplane.refuses(scheduler(s)); err != nil {
				return err
			} else if why != "" {
				continue
			}
			if err := all(put(changing(fmt.Sprintf("scheduler = %q", s))), then)(r); err != nil {
				return fmt.Errorf("scheduler %q: %w", s, err)
			}
		}
		return nil
	}
}

// goOn expects that the connections x, p and d continue.
var goOn = all(held("x", marked("x")), held("p", marked("p")), held("d", marked("d")))
