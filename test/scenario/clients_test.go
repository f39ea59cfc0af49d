//go:build linux

package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/proxy/proxyproto"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// masqueraded is a service with two backends.
func masqueraded(how string) string {
	return service("web", nodePortAndUDP, firstTwo, `scheduler = "rr"`, `masquerade = "`+how+`"`)
}

func restricted(ranges string) string {
	return service("web", nodePortAndUDP, first, `source_ranges = [ `+ranges+` ]`) + service("open", webPort, first)
}

// proxied is a service with servers that require a PROXY header, and other settings.
func proxied(settings string) string {
	return service("web", `{ port = 7080, target_port = 7082, node_port = "auto" }, { port = 7053, target_port = 7081, protocol = "udp" }`, firstTwo, `scheduler = "rr"`) + settings
}

// bounded is a service with limits of connections: of each backend, and of the service.
func bounded(one, two int, settings string) string {
	return service("web", webPort, fmt.Sprintf("{ address = \"{backend1}\", max_connections = %d }, { address = \"{backend2}\", max_connections = %d }", one, two),
		`scheduler = "rr"`, settings)
}

// The client addresses that backends see, and the clients that are accepted.
var clients = []scenario{
	{
		name: "masquerade auto", shows: []*feature{masqAuto, clientAddress}, families: both,
		steps: []step{
			put(masqueraded("auto")),
			ask(client, "web", 2, replaced), ask(pod, "web", 2, kept), ask(director, "web", 2, replaced), ask(b1, "web", 2, replaced),
			ask(client, "web:7053/udp", 2, replaced), ask(pod, "web:7053/udp", 2, kept),
			ask(director, "web:7053/udp", 2, replaced), ask(b1, "web:7053/udp", 2, replaced),
			ask(client, "web@node", 2, replaced),
		},
	},
	{
		name: "masquerade auto, backends are pods", shows: []*feature{masqAuto, clientAddress}, families: both, pods: []place{pod, b1, b2},
		steps: []step{
			put(masqueraded("auto")),
			// A backend that reaches itself would answer itself. The server sees a backend that
			// reaches another one.
			ask(b1, "web", 4, by(counts{b1: 2, b2: 2}), func(r *run, from place, got []answer) error {
				for _, a := range got {
					want := kept
					if place(a.Name) == b1 {
						want = replaced
					}
					if err := want(r, from, []answer{a}); err != nil {
						return err
					}
				}
				return nil
			}),
			ask(b2, "web:7053/udp", 4, by(counts{b1: 2, b2: 2})),
			ask(client, "web", 2, replaced), ask(pod, "web", 2, kept),
		},
	},
	{
		name: "masquerade always", shows: []*feature{masqAlways}, families: both,
		steps: []step{
			put(masqueraded("always")),
			ask(client, "web", 2, replaced), ask(pod, "web", 2, replaced), ask(director, "web", 2, replaced), ask(b2, "web", 2, replaced),
			ask(pod, "web:7053/udp", 2, replaced),
		},
	},
	{
		name: "masquerade never", shows: []*feature{masqNever, clientAddress}, families: both,
		steps: []step{
			put(masqueraded("never")),
			ask(client, "web", 2, kept), ask(pod, "web", 2, kept), ask(client, "web@node", 2, kept), ask(client, "web:7053/udp", 2, kept),
		},
	},
	{
		name: "source ranges", shows: []*feature{sourceRanges, rangesOfUDP}, families: both,
		steps: []step{
			put(restricted(`"{pod}", "192.0.2.0/24", "2001:db8::/32"`)),
			ask(pod, "web", 1, only(b1)), ask(director, "web", 1, only(b1)), ask(pod, "web:7053/udp", 1, only(b1)),
			ask(director, "web:7053/udp", 1, only(b1)),
			refused(client, "web"), refused(b1, "web"),
			inKernel(
				all(refused(client, "web:7053/udp"), refused(b2, "web:7053/udp")),
				all(ignored(client, "web:7053/udp"), ignored(b2, "web:7053/udp")),
			),
			ask(client, "web@node", 1, only(b1)), // node ports accept every client that can reach the host
			ask(client, "open", 1, only(b1)),
			hold("x", pod, "web"),
			put(restricted(`"{net:client}"`)),
			held("x", only(b1)), // open connections continue
			refused(pod, "web"), refused(b1, "web"),
			ask(client, "web", 1, only(b1)), ask(client, "web:7053/udp", 1, only(b1)),
			put(restricted(``)),
			ask(pod, "web", 1, only(b1)), ask(b1, "web", 1, only(b1)),
		},
	},
	{
		name: "proxy protocol", shows: []*feature{proxyProtocol}, families: both,
		steps: []step{
			serveBehindProxy(7082, b1, b2),
			put(proxied("")), // applies to an existing service, too
			put(proxied(`proxy_protocol = "v2"`)),
			ask(client, "web", 4, seen(client), by(counts{b1: 2, b2: 2})), ask(pod, "web", 2, seen(pod)), ask(client, "web@node", 2, seen(client)),
			ask(client, "web:7053/udp", 2, replaced), // TCP only
			put(proxied(`proxy_protocol = "v1"`)),
			ask(client, "web", 2, seen(client)), ask(b1, "web", 2, seen(b1)),
		},
	},
	{
		name: "balancers in front", shows: []*feature{acceptProxy, proxyProtocol, sourceRanges}, families: both,
		steps: []step{
			serveBehindProxy(7082, b1, b2),
			put(proxied("")),
			put(proxied("proxy_protocol = \"v2\"\naccept_proxy_from = [ \"{pod}\" ]\nsource_ranges = [ \"{client}\" ]\n")),
			balance(pod, "web", proxyproto.V1, client, seen(client)), balance(pod, "web", proxyproto.V2, client, seen(client)),
			ask(client, "web", 2, seen(client)), // an ordinary client
			refused(pod, "web"),                 // a balancer without a header
			refused(b1, "web"),                  // outside of the source ranges
			put(proxied("proxy_protocol = \"v1\"\naccept_proxy_from = [ \"{pod}\" ]\nscheduler_flags = []\naffinity = {}\n")),
			balance(pod, "web@node", proxyproto.V2, b3, seen(b3)),
			balance(pod, "web", proxyproto.V2, client, seen(client), as("x")),
			ask(client, "web", 3, marked("x")), // the same client for affinity
			ask(b1, "web:7053/udp", 1),
		},
	},
	{
		name: "limits of connections", shows: []*feature{backendLimit}, families: both,
		steps: []step{
			put(bounded(1, 2, "")),
			holdAll(3, client, "web", by(counts{b1: 1, b2: 2})),
			refused(client, "web"), refused(pod, "web"),
			held("web 0"), held("web 1"), held("web 2"),
			put(bounded(0, 2, "")), // applies at once
			ask(client, "web", 1, only(b1)),
			held("web 0"), held("web 1"), held("web 2"),
			put(bounded(0, 0, "")),
			ask(client, "web", 2),
		},
	},
	{
		name: "a limit of a service", shows: []*feature{serviceLimit}, families: both,
		steps: []step{
			put(bounded(0, 0, "")),
			holdAll(3, client, "web"),
			inKernel(
				all(putInPart(bounded(0, 0, "max_connections = 3\n"), "max_connections"), ask(client, "web", 1)),
				all(put(bounded(0, 0, "max_connections = 3\n")), refused(client, "web")), // the open connections count
			),
			held("web 0"), held("web 1"), held("web 2"),
			put(bounded(0, 0, "")),
			ask(client, "web", 2),
		},
	},
	{
		name: "a limit of connections for each client", shows: []*feature{sourceConnections}, families: both,
		steps: []step{
			put(service("web", nodePortAndUDP, firstTwo, "max_connections_per_source = 2\n")),
			holdAll(2, client, "web"), refused(client, "web"),
			ask(client, "web@node", 1), ask(client, "web:7053/udp", 1), // other ports
			hold("pod", pod, "web"),                                                                        // another client
			hold("own 0", director, "web"), hold("own 1", director, "web"), hold("own 2", director, "web"), // this host
			held("web 0"), held("web 1"),
			release("web 0"), eventually(ask(client, "web", 1)),
		},
	},
	{
		name: "a limit of the rate of each client", shows: []*feature{sourceRate}, families: both,
		steps: []step{
			put(service("web", nodePortAndUDP, firstTwo, "max_rate_per_source = 1\n")),
			ask(client, "web", 1), eventually(refused(client, "web")), ask(client, "web:7053/udp", 1), eventually(refused(client, "web:7053/udp")),
			ask(pod, "web", 1), ask(director, "web", 3),
			eventually(ask(client, "web", 1)),
		},
	},
	{
		name: "clients in a flood of SYNs", shows: []*feature{synProxy}, families: both,
		steps: []step{
			put(masqueraded("always") + "syn_proxy = true\n"),
			hold("before", client, "web"), flooded(client, "web"),
			ask(client, "web", 4, replaced), ask(pod, "web", 4, replaced), ask(director, "web", 2),
			held("before"),
		},
	},
	{
		name: "balancers in front of plain backends", shows: []*feature{acceptProxy}, families: both,
		steps: []step{
			put(masqueraded("auto") + "accept_proxy_from = [ \"{net:pod}\", \"{client}\" ]\n"),
			balance(pod, "web", proxyproto.V1, b3, replaced), balance(client, "web", proxyproto.V2, b3, replaced), refused(client, "web"),
			put(masqueraded("auto")),
			ask(client, "web", 2, replaced),
		},
	},
	{
		name: "a firewall that drops by default", shows: []*feature{firewalls}, families: both, isolated: true,
		steps: []step{
			put(service("web", bothPorts, firstTwo, `scheduler = "rr"`)),
			firewalled, remedied,
			ask(client, "web", 4, by(counts{b1: 2, b2: 2})), ask(pod, "web", 2, by(counts{b1: 1, b2: 1})), ask(client, "web:7053/udp", 2),
			onDirector("nft delete table inet fw"),
		},
	},
}

// flooded begins a flood of SYNs that lasts until the end of the scenario.
func flooded(from place, to string) step {
	return func(r *run) error {
		_, at, err := r.at(to)
		if err == nil {
			sent, _ := r.nodes[from].Flood(r, r.nodes[director], at)
			wait.Until(r, "many SYNs", func() bool { return sent.Load() > 5000 })
		}
		return err
	}
}

// onDirector runs a command of a shell.
func onDirector(command string) step {
	return func(r *run) (err error) {
		r.nodes[director].Do(func() {
			if out, e := exec.Command("sh", "-c", command).CombinedOutput(); e != nil {
				err = fmt.Errorf("%s: %w: %s", command, e, out)
			}
		})
		return err
	}
}

// firewalled makes the director drop what no rule accepts, as an operator does who didn't think of VIPs.
func firewalled(r *run) error {
	need.Program(r, "nft")
	return onDirector(`nft '
		add table inet fw
		add chain inet fw arriving { type filter hook input priority 0; policy drop; }
		add rule inet fw arriving ct state established,related accept
		add rule inet fw arriving iifname lo accept
		add rule inet fw arriving meta l4proto { icmp, ipv6-icmp } accept
		add chain inet fw passing { type filter hook forward priority 0; policy drop; }'`)(r)
}

// remedied applies the advice for each chain that drops packets of the dataplane, until there is none.
func remedied(r *run) error {
	q := configs.FirewallQuery(r.dataplane.name, device, false, []netip.Prefix{r.pool(r.runs, r.family)})
	for n := 0; ; n++ {
		var drops []firewall.Drop
		var err error
		r.nodes[director].Do(func() { drops, err = firewall.Find(q) })
		switch {
		case err != nil:
			return err
		case len(drops) == 0 && n == 0:
			return errors.New("no chain is named")
		case len(drops) == 0:
			return nil
		case n == 4:
			return fmt.Errorf("still after its advice: %s", drops[0])
		}
		if err := onDirector(drops[0].Remedy())(r); err != nil {
			return err
		}
	}
}
