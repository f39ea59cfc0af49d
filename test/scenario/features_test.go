//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/ironvip/ironvip/connect"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/vip"
)

// dataplane is one kind of dataplane.
type dataplane struct {
	name        string
	unsupported func(*vip.Frontend) error // the check that Apply uses
	random      bool                      // rr and wrr choose at random, not in turn
	open        func(l *lab, pods []netip.Prefix) (plane, error)
}

// withVIPs is a dataplane with the addresses of its VIPs, as in the agent.
type withVIPs struct {
	*vips.Plane
	inner plane
}

func (p withVIPs) Close() error { return errors.Join(p.Plane.Close(), p.inner.Close()) }

// addVIPs adds the addresses to a dataplane, unless it could not be opened.
func addVIPs(inner plane, err error) (plane, error) {
	if err != nil {
		return nil, err
	}
	_, sockets := inner.(*proxy.Target)
	p, err := vips.New(vips.Options{Plane: inner, Device: device, Sockets: sockets})
	return withVIPs{p, inner}, err
}

// connecting is a dataplane with balancing at connect() beside it.
type connecting struct {
	plane
	beside *connect.Plane
}

// Connections implements reconcile.Connections with those of both.
func (c connecting) Connections(ctx context.Context, k vip.FrontendKey) (map[netip.AddrPort]int, error) {
	out, err := c.plane.Connections(ctx, k)
	if err != nil {
		return nil, err
	}
	more, err := c.beside.Connections(ctx, k)
	for a, n := range more {
		out[a] += n
	}
	return out, err
}

func (c connecting) Close() error {
	c.beside.Close()
	return c.plane.Close()
}

var (
	userspace = &dataplane{
		name:        "proxy",
		unsupported: proxy.Unsupported,
		open: func(l *lab, _ []netip.Prefix) (plane, error) {
			target := proxy.New(proxy.Options{Own: l.own, SkLookup: l.skLookup})
			if e := target.Entrance(); e.SkLookup != l.skLookup {
				return nil, errors.Join(errors.New(e.String()), target.Close())
			}
			return addVIPs(target, nil)
		},
	}
	kernel = &dataplane{
		name:        "ipvs",
		unsupported: ipvs.Unsupported,
		open: func(l *lab, pods []netip.Prefix) (plane, error) {
			p, err := ipvs.New(ipvs.Options{
				Device: device, Owns: l.owns, PodCIDRs: func() []netip.Prefix { return pods }, Log: slog.New(slog.DiscardHandler),
			})
			return addVIPs(p, err)
		},
	}
	nftables = &dataplane{
		name:        "nft",
		unsupported: nft.Unsupported,
		random:      true,
		open: func(l *lab, pods []netip.Prefix) (plane, error) {
			p, err := nft.New(nft.Options{
				Device: device, Owns: l.owns, PodCIDRs: func() []netip.Prefix { return pods }, Log: slog.New(slog.DiscardHandler),
			})
			return addVIPs(p, err)
		},
	}
	dataplanes = []*dataplane{userspace, kernel, nftables}
)

// feature is one thing that a service may request, or that its traffic depends on. Sample is the
// part of a service that requests it. A dataplane doesn't support the feature if its Unsupported
// rejects the frontends of the sample. Where dataplanes support a feature with different effects,
// does describes them.
type feature struct {
	name   string
	sample string
	does   map[string]string
}

// The defaults of samples.
const (
	somePort    = "ports = [ { port = 80 } ]\n"
	udpPort     = "ports = [ { port = 80, protocol = \"udp\" } ]\n"
	someBackend = "backends = [ { address = \"10.1.0.11\", node = \"here\" }, { address = \"10.1.0.12\", node = \"there\" } ]\n"
	someService = somePort + someBackend
)

func scheduler(name vip.Scheduler) *feature {
	f := &feature{name: fmt.Sprintf("`scheduler = %q`", name), sample: someService + fmt.Sprintf("scheduler = %q\n", name)}
	if name == vip.RoundRobin || name == vip.WeightedRoundRobin {
		f.does = map[string]string{"proxy": "yes", "ipvs": "yes", "nft": "at random"}
	}
	return f
}

// The features, in the order of the document. To add one, also add a scenario that shows it.
var (
	tcp       = &feature{name: "TCP", sample: someService}
	udp       = &feature{name: "UDP", sample: udpPort + someBackend}
	sctp      = &feature{name: "SCTP", sample: "ports = [ { port = 80, protocol = \"sctp\" } ]\n" + someBackend}
	ipv4      = &feature{name: "IPv4", sample: someService}
	ipv6      = &feature{name: "IPv6", sample: somePort + "backends = [ { address = \"fd01::11\" } ]\n"}
	dualStack = &feature{name: "a VIP of each family", sample: somePort + "families = [ \"ipv4\", \"ipv6\" ]\nbackends = [ { address = \"10.1.0.11\" }, { address = \"fd01::11\" } ]\n"}

	rr          = scheduler(vip.RoundRobin)
	wrr         = scheduler(vip.WeightedRoundRobin)
	lc          = scheduler(vip.LeastConnection)
	wlc         = scheduler(vip.WeightedLeastConnection)
	sh          = scheduler(vip.SourceHash)
	mh          = scheduler(vip.MaglevHash)
	sed         = scheduler(vip.ShortestExpectedDelay)
	nq          = scheduler(vip.NeverQueue)
	fo          = scheduler(vip.WeightedFailover)
	dh          = scheduler(vip.DestinationHash)
	portFlag    = &feature{name: "`scheduler_flags = [\"port\"]` (`sh`, `mh`)", sample: someService + "scheduler = \"sh\"\nscheduler_flags = [ \"port\" ]\n"}
	fallback    = &feature{name: "`scheduler_flags = [\"fallback\"]` (`sh`, `mh`)", sample: someService + "scheduler = \"sh\"\nscheduler_flags = [ \"fallback\" ]\n"}
	onePacket   = &feature{name: "`scheduler_flags = [\"one-packet\"]`", sample: udpPort + someBackend + "forward = \"dr\"\nscheduler_flags = [ \"one-packet\" ]\n"}
	affinity    = &feature{name: "`affinity`", sample: someService + "affinity = { timeout = \"1h\" }\n"}
	stickyRange = &feature{name: "`affinity` with a port range and a `target_port`",
		sample: "ports = [ { port = \"10000-10099\", target_port = 80 } ]\naffinity = {}\n" + someBackend}
	stickyInside = &feature{name: "`affinity` with different traffic policies and a `target_port`",
		sample: "ports = [ { port = 80, target_port = 8080 } ]\naffinity = {}\nexternal_traffic = \"local\"\n" + someBackend}
	states      = &feature{name: "weight 0, `drain`, `maint`, `terminating`", sample: somePort + "backends = [ { address = \"10.1.0.11\", weight = 0 }, { address = \"10.1.0.12\", state = \"drain\" } ]\n"}
	shares      = &feature{name: "`groups` of backends", sample: somePort + "groups = [ { name = \"stable\", weight = 90, backends = [ { address = \"10.1.0.11\" } ] }, { name = \"canary\", weight = 10, backends = [ { address = \"10.1.0.12\" } ] } ]\n"}
	replacement = &feature{name: "a backend that refuses a connection", sample: someService,
		does: map[string]string{"ipvs": "the client is refused", "nft": "the client is refused", "proxy": "another backend is tried"}}

	localBoth    = &feature{name: "both traffic policies `local`", sample: someService + "external_traffic = \"local\"\ninternal_traffic = \"local\"\n"}
	localOutside = &feature{name: "different `external_traffic` and `internal_traffic`", sample: someService + "external_traffic = \"local\"\n"}
	sameZone     = &feature{name: "`traffic_distribution = \"same-zone\"`", sample: someService + "traffic_distribution = \"same-zone\"\n"}
	sameNode     = &feature{name: "`traffic_distribution = \"same-node\"`", sample: someService + "traffic_distribution = \"same-node\"\n"}
	hints        = &feature{name: "`for_zones` and `for_nodes` of backends", sample: somePort + "backends = [ { address = \"10.1.0.11\", for_zones = [\"za\"], for_nodes = [\"here\"] } ]\n"}
	somePorts    = &feature{name: "`ports` of backends", sample: "ports = [ { port = 80, name = \"http\" }, { port = 81 } ]\nbackends = [ { address = \"10.1.0.11\", ports = [\"http\"] } ]\n"}

	masqAuto      = &feature{name: "`masquerade = \"auto\"`", sample: someService + "masquerade = \"auto\"\n"}
	masqAlways    = &feature{name: "`masquerade = \"always\"`", sample: someService + "masquerade = \"always\"\n"}
	masqNever     = &feature{name: "`masquerade = \"never\"`", sample: someService + "masquerade = \"never\"\n"}
	clientAddress = &feature{name: "backends see the client's address where `masquerade` allows", sample: someService,
		does: map[string]string{"proxy": "always this host's address", "ipvs": "yes", "nft": "yes"}}

	sourceRanges = &feature{name: "`source_ranges`", sample: someService + "source_ranges = [ \"192.0.2.0/24\" ]\n"}
	rangesOfUDP  = &feature{name: "a datagram from outside `source_ranges`", sample: udpPort + someBackend + "source_ranges = [ \"192.0.2.0/24\" ]\n",
		does: map[string]string{"proxy": "dropped", "ipvs": "port unreachable", "nft": "port unreachable"}}
	proxyProtocol = &feature{name: "`proxy_protocol`", sample: someService + "proxy_protocol = \"v2\"\n"}
	acceptProxy   = &feature{name: "`accept_proxy_from`", sample: someService + "accept_proxy_from = [ \"192.0.2.0/24\" ]\n"}
	backendLimit  = &feature{name: "`max_connections` of backends", sample: somePort + "backends = [ { address = \"10.1.0.11\", max_connections = 100 } ]\n"}
	serviceLimit  = &feature{name: "`max_connections` and `max_queue` of a service", sample: someService + "max_connections = 100\nmax_queue = 10\n",
		does: map[string]string{"proxy": "yes", "ipvs": "no effect", "nft": "no effect"}}
	sourceConnections = &feature{name: "`max_connections_per_source`", sample: someService + "max_connections_per_source = 100\n"}
	sourceRate        = &feature{name: "`max_rate_per_source`", sample: someService + "max_rate_per_source = 100\n"}
	synProxy          = &feature{name: "`syn_proxy`", sample: someService + "syn_proxy = true\n"}
	nodePorts         = &feature{name: "`node_port`", sample: "ports = [ { port = 80, node_port = \"auto\" } ]\n" + someBackend}
	portRange         = &feature{name: "a port range", sample: "ports = [ { port = \"10000-10099\" } ]\n" + someBackend}
	allPorts          = &feature{name: "`port = \"all\"`", sample: "ports = [ { port = \"all\" } ]\n" + someBackend}
	rangeToOne        = &feature{name: "a port range with a `target_port`", sample: "ports = [ { port = \"10000-10099\", target_port = 80 } ]\n" + someBackend}

	healthChecks   = &feature{name: "`health`", sample: someService + "health = { type = \"http\" }\n"}
	resetUnhealthy = &feature{name: "`on_unhealthy = \"reset\"`", sample: someService + "on_unhealthy = \"reset\"\n"}
	panicThreshold = &feature{name: "`panic_threshold`", sample: someService + "panic_threshold = 50\n"}
	slowStart      = &feature{name: "`slow_start`", sample: someService + "slow_start = \"30s\"\n"}
	backups        = &feature{name: "`backup` of backends", sample: somePort + "backends = [ { address = \"10.1.0.11\", backup = true } ]\n"}

	halfClose = &feature{name: "half-closed connections", sample: someService}

	nat     = &feature{name: "`forward = \"nat\"`", sample: someService + "forward = \"nat\"\n"}
	dr      = &feature{name: "`forward = \"dr\"`", sample: someService + "forward = \"dr\"\n"}
	tunnel  = &feature{name: "`forward = \"tunnel\"`, IPv4", sample: someService + "forward = \"tunnel\"\n"}
	floats  = &feature{name: "`forward = \"host\"`", sample: somePort + "forward = \"host\"\n"}
	tunnel6 = &feature{name: "`forward = \"tunnel\"`, IPv6", sample: somePort + "backends = [ { address = \"fd01::11\" } ]\nforward = \"tunnel\"\n"}

	refusal  = &feature{name: "a service without a usable backend refuses immediately", sample: somePort}
	unserved = &feature{name: "a VIP's other ports don't expose listeners on all addresses of the host", sample: someService,
		does: map[string]string{"proxy": "reachable at the VIP", "ipvs": "yes", "nft": "yes"}}
	drain     = &feature{name: "a removed backend keeps its connections until the deadline", sample: someService + "drain_timeout = \"1h\"\n"}
	settings  = &feature{name: "open connections continue when settings change", sample: someService}
	firewalls = &feature{name: "a firewall of the host that drops clients is named, with the rule that lets them pass", sample: someService}
	udpMove   = &feature{name: "UDP clients of a removed backend move immediately", sample: udpPort + someBackend}
	outlive   = &feature{name: "open connections at a restart of the agent", sample: someService,
		does: map[string]string{"ipvs": "continue", "nft": "continue", "proxy": "continue, if [a process of its own](proxy.md#processes) forwards"}}
)

// groups are the features in the document's groups.
var groups = []struct {
	title    string
	features []*feature
}{
	{"Protocols and forwarding", []*feature{tcp, halfClose, udp, sctp, ipv4, ipv6, dualStack, portRange, rangeToOne, allPorts, nodePorts, nat, dr, tunnel, tunnel6, floats}},
	{"Choosing a backend", []*feature{rr, wrr, lc, wlc, sh, mh, sed, nq, fo, dh, fallback, portFlag, onePacket, affinity, stickyRange, stickyInside, states, shares,
		localBoth, localOutside, sameZone, sameNode, hints, somePorts, replacement}},
	{"Client addresses and access", []*feature{masqAuto, masqAlways, masqNever, clientAddress, sourceRanges, rangesOfUDP, proxyProtocol, acceptProxy, backendLimit, serviceLimit, sourceConnections, sourceRate, synProxy, refusal, unserved, firewalls}},
	{"Health", []*feature{healthChecks, resetUnhealthy, panicThreshold, backups, slowStart}},
	{"Changes", []*feature{drain, settings, udpMove, outlive}},
}

// frontends returns the frontends of a service that requests the feature.
func (f *feature) frontends() ([]vip.Frontend, error) {
	h := hub{}
	services, err := h.parse("[[service]]\nname = \"sample\"\n" + f.sample)
	if err != nil {
		return nil, err
	}
	s := services[0]
	granted := vip.Allocation{Asked: &s, NodePorts: map[vip.PortKey]uint16{}}
	for _, a := range []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")} {
		for _, b := range s.Backends {
			if vip.FamilyOf(b.Address) == vip.FamilyOf(a) {
				granted.VIPs = append(granted.VIPs, a)
				break
			}
		}
	}
	if len(granted.VIPs) == 0 {
		granted.VIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	}
	for i, p := range s.Ports {
		granted.NodePorts[p.Key()] = uint16(30000 + i)
	}
	frontends, problems := compile.Service(compile.Input{View: compile.View{Service: &s}, Allocation: &granted, Node: compile.Node{
		Name: "here", Zone: "za", NodePortAddrs: []netip.Addr{netip.MustParseAddr("198.51.100.1")},
	}})
	if len(problems) > 0 {
		return nil, problems[0]
	}
	return frontends, nil
}

// refuses returns the dataplane's reason for refusing f; "" if it supports f.
func (d *dataplane) refuses(f *feature) (string, error) {
	frontends, err := f.frontends()
	if err != nil {
		return "", fmt.Errorf("the sample of %q: %w", f.name, err)
	}
	for i := range frontends {
		err := d.unsupported(&frontends[i])
		if err == nil || frontends[i].Key.Whole() {
			continue
		}
		p, typed := errors.AsType[vip.Problem](err)
		if !typed || p.Code != vip.CodeUnsupported {
			return "", fmt.Errorf("%s refuses %q with %w, which is not a problem of code %s", d.name, f.name, err, vip.CodeUnsupported)
		}
		return p.Message, nil
	}
	return "", nil
}
