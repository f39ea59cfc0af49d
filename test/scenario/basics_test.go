//go:build linux

package scenario

import (
	"fmt"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// The ports and the backends of most services.
const (
	webPort        = `{ port = 7080, target_port = 7081 }`
	bothPorts      = webPort + `, { port = 7053, target_port = 7081, protocol = "udp" }`
	nodePortAndUDP = `{ port = 7080, target_port = 7081, node_port = "auto" }, { port = 7053, target_port = 7081, protocol = "udp" }`
	bothNodePorts  = `{ port = 7080, target_port = 7081, node_port = "auto" }, { port = 7053, target_port = 7081, protocol = "udp", node_port = "auto" }`
	rangePorts     = `{ port = "7101-7105" }, { port = "7101-7105", protocol = "udp" }`
	rangeToOnePort = `{ port = "7101-7105", target_port = 7081 }, { port = "7101-7105", target_port = 7081, protocol = "udp" }`

	first, second = `{ address = "{backend1}" }`, `{ address = "{backend2}" }`
	firstTwo      = first + ", " + second
	hereAndThere  = `{ address = "{backend1}", node = "here" }, { address = "{backend2}", node = "there" }`
)

const sharing = `share_key = "both"`

// service is a service in TOML, with lines of other settings.
func service(name, ports, backends string, settings ...string) string {
	return fmt.Sprintf("\n[[service]]\nname = %q\n%s\nports = [ %s ]\nbackends = [ %s ]\n", name, strings.Join(settings, "\n"), ports, backends)
}

// webService is a service with one backend.
var webService = service("web", webPort, first)

// noneService is a service with these backends.
func noneService(backends string) string {
	return service("none", bothPorts, backends)
}

// Plain services: they answer in each protocol and family, and reject clients where no backend is
// ready.
var basics = []scenario{
	{
		name: "tcp and udp", shows: []*feature{tcp, udp, ipv4, ipv6, nat}, families: both,
		steps: []step{
			put(service("web", bothPorts, firstTwo, `scheduler = "rr"`)),
			ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
			ask(pod, "web", 2, by(counts{b1: 1, b2: 1})),
			ask(director, "web", 2, by(counts{b1: 1, b2: 1}), replaced),
			ask(b1, "web", 2, by(counts{b1: 1, b2: 1})),
			ask(client, "web:7053/udp", 4, by(counts{b1: 2, b2: 2})),
			ask(pod, "web:7053/udp", 2, by(counts{b1: 1, b2: 1})),
			ask(director, "web:7053/udp", 2, by(counts{b1: 1, b2: 1}), replaced),
			ask(b1, "web:7053/udp", 2, by(counts{b1: 1, b2: 1})),
		},
	},
	{
		name: "sctp", shows: []*feature{sctp}, families: both, isolated: true, modules: []string{"sctp"},
		steps: []step{
			serveAt(b1, "sctp", backendPort), serveAt(b2, "sctp", backendPort),
			put(service("sig", `{ port = 7080, target_port = 7081, protocol = "sctp" }`, firstTwo, `scheduler = "rr"`)),
			ask(client, "sig", 2, by(counts{b1: 1, b2: 1}), replaced),
			ask(pod, "sig", 2, by(counts{b1: 1, b2: 1}), kept),
			hold("x", client, "sig"),
			put(service("sig", `{ port = 7080, target_port = 7081, protocol = "sctp" }`, `{ address = "{backend1}", state = "maint" }, { address = "{backend2}", state = "drain" }`)),
			held("x", marked("x")),
			refused(client, "sig"),
		},
	},
	{
		name: "a vip of each family", shows: []*feature{dualStack}, families: both, dual: true,
		steps: []step{
			put(service("web", webPort, `{ address = "{backend1:4}" }, { address = "{backend2:6}" }`)),
			ask(client, "web", 2, same, func(r *run, from place, got []answer) error {
				return only(map[vip.Family]place{vip.IPv4: b1, vip.IPv6: b2}[r.family])(r, from, got)
			}),
		},
	},
	{
		name: "services share a vip", shows: []*feature{tcp, udp},
		steps: []step{
			put(service("one", webPort, first, sharing) + service("two", `{ port = 7080, target_port = 7081, protocol = "udp" }, { port = 7090, target_port = 7081 }`, second, sharing)),
			ask(client, "one:7080/tcp", 1, only(b1)), ask(client, "one:7080/udp", 1, only(b2)), ask(client, "one:7090/tcp", 1, only(b2)),
			remove("two"),
			ask(client, "one:7080/tcp", 1, only(b1)),
			refused(client, "one:7080/udp"), refused(client, "one:7090/tcp"),
		},
	},
	{
		name: "no usable backend", shows: []*feature{refusal, states}, families: both,
		steps: []step{
			put(noneService("")),
			refusedByBoth("none"),
			put(noneService(`{ address = "{backend1}", weight = 0 }, { address = "{backend2}", state = "maint" }, { address = "{backend3}", state = "drain" }`)),
			refusedByBoth("none"),
			put(noneService(`{ address = "{backend1}", weight = 3 }`)),
			ask(client, "none", 1, only(b1)),
			ask(client, "none:7053/udp", 1, only(b1)),
		},
	},
	{
		name: "what is no service", shows: []*feature{unserved}, families: both,
		steps: []step{
			put(webService),
			ask(client, "web", 1, only(b1)),
			refused(client, "web:7079/tcp"), refused(client, "web:7079/udp"), refused(client, "web:7080/udp"),
			refused(director, "web:7079/tcp"), refused(b1, "web:7079/udp"),
		},
	},
	{
		name: "listeners of the host", shows: []*feature{unserved}, families: both, isolated: true,
		steps: []step{
			put(webService),
			ask(client, "host:7022/tcp", 1, only(director)),
			ask(client, "host:7022/udp", 1, only(director)),
			inKernel(
				all(refused(client, "web:7022/tcp"), refused(client, "web:7022/udp"), refused(b1, "web:7022/tcp"),
					refused(director, "web:7022/tcp"), refused(director, "web:7022/udp")),
				ask(client, "web:7022/tcp", 1, only(director)),
			),
		},
	},
	{
		name: "node ports", shows: []*feature{nodePorts}, families: both,
		steps: []step{
			put(service("web", bothNodePorts, firstTwo, `scheduler = "rr"`)),
			ask(client, "web@node", 2, by(counts{b1: 1, b2: 1}), replaced),
			ask(pod, "web@node", 2, by(counts{b1: 1, b2: 1})),
			ask(director, "web@node", 2, by(counts{b1: 1, b2: 1}), replaced),
			ask(b1, "web@node", 2, by(counts{b1: 1, b2: 1})),
			ask(client, "web:7053/udp@node", 2, by(counts{b1: 1, b2: 1}), replaced),
			put(service("web", bothNodePorts, "")),
			refused(client, "web@node"), refused(director, "web@node"),
			refused(client, "web:7053/udp@node"),
			remove("web"),
		},
	},
	{
		name: "node ports follow addresses", shows: []*feature{nodePorts}, isolated: true,
		steps: []step{
			put(service("web", `{ port = 7080, target_port = 7081, node_port = 30080 }`, first, `drain_timeout = "0s"`)),
			hostAddr("10.88.0.1/24"),
			eventually(ask(client, "web@10.88.0.1", 1, only(b1))),
			noHostAddr("10.88.0.1/24"),
			eventually(noFrontendAt("10.88.0.1")),
			ask(client, "web@node", 1, only(b1)),
			refused(client, "web:30080/tcp"), // the VIP doesn't serve node ports
		},
	},
	{
		name: "node ports on chosen addresses", shows: []*feature{nodePorts}, isolated: true, nodePorts: "{net:pod}",
		steps: []step{
			put(service("web", `{ port = 7080, target_port = 7081, node_port = "auto" }`, first)),
			ask(client, "web@{gateway:pod}", 1, only(b1), replaced),
			refused(client, "web@node"),
		},
	},
	{
		name: "half-closed", shows: []*feature{halfClose}, families: both,
		steps: []step{
			put(webService),
			askHalfClosed(client, "web"),
		},
	},
	{
		name: "port range", shows: []*feature{portRange}, families: both,
		steps: []step{
			serveAt(b1, "tcp", 7102), serveAt(b1, "tcp", 7104), serveAt(b1, "udp", 7103),
			put(service("many", rangePorts, first)),
			ask(client, "many:7102/tcp", 1, only(b1), replaced), ask(pod, "many:7104/tcp", 1, only(b1), kept),
			ask(client, "many:7103/udp", 1, only(b1)), ask(director, "many:7104/tcp", 1, only(b1), replaced),
			ask(b1, "many:7102/tcp", 1, only(b1), replaced),
			refused(client, "many:7100/tcp"), refused(client, "many:7106/tcp"), refused(client, "many:7106/udp"),
			hold("x", client, "many:7102/tcp"),
			put(service("many", rangePorts, `{ address = "{backend1}", state = "maint" }`)),
			held("x", only(b1)),
			refused(client, "many:7102/tcp"), refused(client, "many:7103/udp"), refused(director, "many:7104/tcp"),
		},
	},
	{
		name: "port range to one port", shows: []*feature{rangeToOne},
		steps: []step{
			put(service("many", rangeToOnePort, firstTwo, `scheduler = "rr"`)),
			ask(client, "many:7101/tcp", 2, by(counts{b1: 1, b2: 1})),
			ask(client, "many:7105/tcp", 2, by(counts{b1: 1, b2: 1})),
			refused(client, "many:7106/tcp"),
			hold("x", client, "many:7103/udp"),
			state("many", "x", vip.Maint),
			held("x", not("x")),
			put(service("many", rangeToOnePort, `{ address = "{director}" }`)),
			ask(client, "many:7103/tcp", 1, only(director)), ask(client, "many:7103/udp", 1, only(director)),
			ask(director, "many:7103/tcp", 1, only(director)), ask(director, "many:7103/udp", 1, only(director)),
		},
	},
	{
		name: "a range's clients at one port", shows: []*feature{stickyRange},
		steps: []step{
			put(service("many", `{ port = "7101-7105", target_port = 7081 }`, firstTwo, `affinity = {}`)),
			ask(client, "many:7101/tcp", 2, as("chosen")),
			ask(client, "many:7105/tcp", 2, marked("chosen")),
		},
	},
	{
		name: "a range's clients", shows: []*feature{portRange, sourceRanges, affinity, udpMove}, families: both,
		steps: []step{
			serveAt(b1, "udp", 7101), serveAt(b1, "udp", 7103), serveAt(b2, "udp", 7101), serveAt(b2, "udp", 7103),
			put(service("many", `{ port = "7101-7105", protocol = "udp" }`, firstTwo, `scheduler = "rr"`, `affinity = { timeout = "1h" }`, `source_ranges = [ "{net:pod}" ]`)),
			ask(pod, "many:7101/udp", 2, as("chosen")),
			ask(pod, "many:7103/udp", 2, marked("chosen")),
			refused(client, "many:7101/udp"),
			ask(director, "many:7103/udp", 1, replaced),
			hold("x", pod, "many:7101/udp", marked("chosen")),
			put(service("many", `{ port = "7101-7105", protocol = "udp" }`, first, `scheduler = "rr"`)),
			held("x", only(b1)),
			put(service("many", `{ port = "7101-7105", protocol = "udp" }`, second, `scheduler = "rr"`, `masquerade = "always"`)),
			held("x", only(b2)),
			ask(client, "many:7103/udp", 1, only(b2)), ask(pod, "many:7103/udp", 1, only(b2), replaced),
		},
	},
	{
		name: "all ports", shows: []*feature{allPorts}, isolated: true,
		steps: []step{
			put(service("many", `{ port = "all" }`, first)),
			ask(client, "many:7081/tcp", 1, only(b1)),
			refused(client, "many:7022/tcp"), // without a listener on the backend, the host doesn't answer instead
			refused(client, "many:7081/udp"),
		},
	},
}

func refusedByBoth(service string) step {
	return all(refused(client, service), refused(director, service), refused(pod, service),
		refused(client, service+":7053/udp"), refused(director, service+":7053/udp"), refused(b1, service+":7053/udp"))
}
