package reference

import "github.com/ironvip/ironvip/vip/spec"

// Service and HealthCheck have the fields of a service and of its health check, as vip/spec defines
// them.
var (
	Service     = tableOf(spec.Fields)
	HealthCheck = tableOf(spec.CheckFields)
)

func tableOf(fields []spec.Field) (out Table) {
	for _, f := range fields {
		k := Key{Key: f.Key, Meaning: f.Meaning}
		k.Values, k.Default, _ = f.Document()
		out = append(out, k)
	}
	return out
}

// Port has the fields of a port.
var Port = Table{
	{Key: "name", Meaning: "its name, unique in the service", Values: "DNS label", Default: "`80/tcp`, for example"},
	{Key: "protocol", Meaning: "the transport protocol", Values: "`tcp`, `udp`, `sctp`", Default: "`tcp`"},
	{Key: "port", Meaning: "the VIP's port, or a [port range](#port-ranges); ports of one protocol must not overlap", Values: "1 to 65535, `\"10000-10099\"`, `\"all\"`", Default: "required"},
	{Key: "target_port", Meaning: "the backends' port; with `dr` and `tunnel` it must equal `port`", Values: "1 to 65535", Default: "`port`; for a range, the port that the client used"},
	{Key: "node_port", Meaning: "also serves the port on the host's own addresses of the VIP's families; not for a range, nor with `dr` and `tunnel`", Values: "`\"off\"`, `\"auto\"`, or a number from `ipam.node_ports`", Default: "`\"off\"`"},
}

// Backend has the fields of a backend.
var Backend = Table{
	{Key: "address", Meaning: "the server's own address, IPv4 or IPv6", Values: "unicast, not link-local, not in a pool; of the VIP's family", Default: "required"},
	{Key: "port", Meaning: "its port, which overrides `target_port`; with `dr` and `tunnel` it must equal the service's only `port`", Values: "1 to 65535", Default: "each port's `target_port`"},
	{Key: "weight", Meaning: "its share of new connections", Values: "0 to 65535; 0 receives none", Default: "1"},
	{Key: "state", Meaning: "`drain` and `maint` keep open connections and accept no new ones; `maint` records that a person did it; `terminating` accepts new ones only while no backend is ready. UDP has no connections, so its clients move to other backends immediately", Values: "`ready`, `drain`, `maint`, `terminating`", Default: "`ready`"},
	{Key: "backup", Meaning: "it receives new connections only if no other backend can", Values: "`true`, `false`", Default: "`false`"},
	{Key: "node", Meaning: "the host that it runs on", Values: "up to 253 printable characters without spaces", Default: "unknown"},
	{Key: "max_connections", Meaning: "open connections and UDP sessions to each of its ports, [see below](#connection-limits)", Values: "1 to 10000000; 0 is no limit", Default: "0"},
	{Key: "zone", Meaning: "its location", Values: "up to 253 printable characters without spaces", Default: "unknown"},
	{Key: "ports", Meaning: "the names of the service's ports that it serves", Values: "port names of the service: `[\"http\", \"53/udp\"]`", Default: "all"},
	{Key: "for_zones", Meaning: "the zones of its intended clients, [see below](#topology-hints)", Values: "up to 64 names, each of up to 253 printable characters without spaces", Default: "all clients"},
	{Key: "for_nodes", Meaning: "the nodes of its intended clients", Values: "up to 64 names, each of up to 253 printable characters without spaces", Default: "all clients"},
}
