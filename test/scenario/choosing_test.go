//go:build linux

package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// scheduled is a service with a scheduler and backends of these weights.
func scheduled(scheduler vip.Scheduler, weights ...int) string {
	var backends []string
	for i, w := range weights {
		backends = append(backends, fmt.Sprintf("{ address = \"{backend%d}\", weight = %d }", i+1, w))
	}
	return service("web", bothPorts, strings.Join(backends, ", "), fmt.Sprintf("scheduler = %q", scheduler))
}

// canary is a service with a group of two backends and one of one backend, of these weights.
func canary(stable, canary int) string {
	return service("web", bothPorts, "", fmt.Sprintf(`groups = [ { name = "stable", weight = %d, backends = [ %s ] }, { name = "canary", weight = %d, backends = [ %s ] } ]`, stable, firstTwo, canary, third))
}

// forgetful is a service with this affinity timeout.
func forgetful(timeout string) string {
	return service("web", bothPorts, firstTwo, `scheduler = "rr"`, fmt.Sprintf("affinity = { timeout = %q }", timeout))
}

// forgets expects the end of an affinity.
var forgets = all(put(forgetful("1s")), ask(client, "web", 1, as("first")), patiently(3*time.Second/2, 1, ask(client, "web", 1, not("first"))))

// The selection of a backend for a new connection.
var choosing = []scenario{
	{
		name: "rr takes turns, whatever the weights", shows: []*feature{rr},
		steps: []step{
			put(scheduled(vip.RoundRobin, 1, 5, 2)),
			ifRandom(ask(client, "web", 200, onAverage(counts{b1: 1, b2: 1, b3: 1})), ask(client, "web", 6, by(counts{b1: 2, b2: 2, b3: 2}))),
			put(scheduled(vip.RoundRobin, 1, 0, 2)),
			ask(client, "web", 4, by(counts{b1: 2, b3: 2})),
		},
	},
	{
		name: "wrr shares by weight", shows: []*feature{wrr},
		steps: []step{
			put(scheduled(vip.WeightedRoundRobin, 3, 1)),
			ifRandom(ask(client, "web", 200, onAverage(counts{b1: 3, b2: 1})), ask(client, "web", 8, by(counts{b1: 6, b2: 2}))),
			ask(client, "web:7053/udp", 8, by(counts{b1: 6, b2: 2})),
			put(scheduled(vip.WeightedRoundRobin, 1, 2)),
			ask(client, "web", 6, by(counts{b1: 2, b2: 4})),
			put(scheduled(vip.WeightedRoundRobin, 0, 2)),
			ask(client, "web", 2, only(b2)),
		},
	},
	{
		name: "groups share by their weights, whatever their sizes", shows: []*feature{shares},
		steps: []step{
			put(canary(90, 10)),
			ifRandom(ask(client, "web", 400, onAverage(counts{b1: 9, b2: 9, b3: 2})), ask(client, "web", 40, by(counts{b1: 18, b2: 18, b3: 4}))),
			weigh("web", "canary", 90),
			ifRandom(ask(client, "web", 400, onAverage(counts{b1: 1, b2: 1, b3: 2})), ask(client, "web", 40, by(counts{b1: 10, b2: 10, b3: 20}))),
			weigh("web", "stable", 0),
			ask(client, "web", 4, only(b3)),
		},
	},
	{
		name: "lc goes where the fewest connections are", shows: []*feature{lc},
		steps: []step{
			put(scheduled(vip.LeastConnection, 1)),
			hold("x", client, "web", only(b1)), hold("y", client, "web", only(b1)),
			put(scheduled(vip.LeastConnection, 10, 1)),
			hold("z", client, "web", only(b2)), hold("w", client, "web", only(b2)),
		},
	},
	{
		name: "wlc goes where the fewest connections are for the weight", shows: []*feature{wlc},
		steps: []step{
			put(scheduled(vip.WeightedLeastConnection, 3, 1)),
			holdAll(4, client, "web", by(counts{b1: 3, b2: 1})),
		},
	},
	{
		name: "sed lets a slow backend be idle", shows: []*feature{sed},
		steps: []step{
			put(scheduled(vip.ShortestExpectedDelay, 3, 1)),
			holdAll(2, client, "web", only(b1)),
		},
	},
	{
		name: "nq lets no backend be idle", shows: []*feature{nq},
		steps: []step{
			put(scheduled(vip.NeverQueue, 3, 1)),
			holdAll(2, client, "web", by(counts{b1: 1, b2: 1})),
		},
	},
	{
		name: "fo takes the heaviest that is there", shows: []*feature{fo},
		steps: []step{
			put(scheduled(vip.WeightedFailover, 10, 1)),
			ask(client, "web", 3, only(b1)),
			put(scheduled(vip.WeightedFailover, 0, 1)),
			ask(client, "web", 2, only(b2)),
			put(scheduled(vip.WeightedFailover, 10, 1)),
			ask(client, "web", 2, only(b1)),
		},
	},
	{
		name: "dh goes by the address that is asked", shows: []*feature{dh},
		steps: []step{
			put(scheduled(vip.DestinationHash, 1, 1, 1)),
			ask(client, "web", 2, as("chosen")),
			ask(pod, "web", 2, marked("chosen")),
			spread(6, "web:7053/udp", "all", marked("chosen")),
		},
	},
	{
		name: "sh keeps a client", shows: []*feature{sh, fallback},
		steps: []step{
			put(scheduled(vip.SourceHash, 1, 1)),
			ask(client, "web", 4, as("chosen")),
			ask(client, "web:7053/udp", 2, marked("chosen")),
			spread(24, "web:7053/udp", "before", anyOf(b1, b2)),
			spread(24, "web:7053/udp", "after", anyOf(b1, b2)),
			stayed("before", "after", "", 0),
			state("web", "chosen", vip.Drain),
			ask(client, "web", 2, not("chosen")),
			state("web", "chosen", vip.Ready),
			ask(client, "web", 2, marked("chosen")),
		},
	},
	{
		name: "mh keeps clients when backends go", shows: []*feature{mh, fallback},
		steps: []step{
			put(scheduled(vip.MaglevHash, 1, 1, 1)),
			ask(client, "web", 3, same),
			spread(40, "web:7053/udp", "before", anyOf(b1, b2, b3)),
			put(scheduled(vip.MaglevHash, 1, 1)),
			spread(40, "web:7053/udp", "after", anyOf(b1, b2)),
			stayed("before", "after", b3, 20),
			put(scheduled(vip.MaglevHash, 1, 1, 0)),
			spread(40, "web:7053/udp", "drained", anyOf(b1, b2)),
			stayed("before", "drained", b3, 20),
			put(scheduled(vip.MaglevHash, 1, 1, 1)),
			spread(40, "web:7053/udp", "back", anyOf(b1, b2, b3)),
			stayed("before", "back", "", 0),
		},
	},
	{
		name: "the port counts", shows: []*feature{portFlag},
		steps: []step{
			put(service("one", `{ port = 7053, target_port = 7081, protocol = "udp" }`, firstTwo, `scheduler = "sh"`, `scheduler_flags = [ "port" ]`) +
				service("two", `{ port = 7053, target_port = 7081, protocol = "udp" }`, firstTwo, `scheduler = "mh"`, `scheduler_flags = [ "port", "fallback" ]`)),
			ask(client, "one", 24, anyOf(b1, b2)),
			ask(client, "two", 24, anyOf(b1, b2)),
		},
	},
	{
		name: "affinity", shows: []*feature{affinity, states}, families: both,
		steps: []step{
			put(service("web", bothPorts, firstTwo, `scheduler = "rr"`, `affinity = { timeout = "1h" }`)),
			ask(client, "web", 3, as("first")),
			ifRandom(ask(pod, "web", 3, same), ask(pod, "web", 3, not("first"), as("second"))),
			ask(client, "web", 2, marked("first")),
			ask(client, "web:7053/udp", 3, same),
			state("web", "first", vip.Maint),
			ask(client, "web", 2, not("first")),
		},
	},
	{
		name: "affinity ends", shows: []*feature{affinity},
		steps: []step{
			// Each request renews the affinity. At its timeout IPVS extends it for a minute if it
			// still has an entry of a connection.
			on{
				kernel: all(quickUDP(), put(forgetful("3s")),
					ask(client, "web:7053/udp", 1, as("first")), patiently(time.Second, 2, ask(client, "web:7053/udp", 1, not("first")))),
				nftables:  forgets,
				userspace: forgets,
			}.step,
		},
	},
	{
		name: "a backend refuses", shows: []*feature{replacement}, families: both,
		steps: []step{
			put(service("web", webPort, `{ address = "{backend1}", port = 7099 }`, `scheduler = "rr"`, `health = { type = "none" }`)),
			refused(client, "web"),
			put(service("web", webPort, `{ address = "{backend1}", port = 7099 }, { address = "{backend2}" }`, `scheduler = "rr"`, `health = { type = "none" }`)),
			inKernel(all(eventually(refused(client, "web")), eventually(ask(client, "web", 1, only(b2)))), ask(client, "web", 4, only(b2))),
		},
	},
}
