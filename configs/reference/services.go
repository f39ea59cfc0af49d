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
	{Key: "port", Meaning: "the VIP's port, or a [port range](#port-ranges)", Values: "1 to 65535, `\"10000-10099\"`, `\"all\"`", Default: "required"},
	{Key: "target_port", Meaning: "the backends' port; with `dr` and `tunnel` it must equal `port`", Values: "1 to 65535", Default: "`port`; for a range, the client's"},
	{Key: "node_port", Meaning: "serves the port on the host's own addresses, too; not for a range, nor with `dr` and `tunnel`", Values: "`\"off\"`, `\"auto\"`, or a number from `ipam.node_ports`", Default: "`\"off\"`"},
}

// Group has the fields of a group of backends.
var Group = Table{
	{Key: "name", Meaning: "its name, unique in the service", Values: "DNS label", Default: "required"},
	{Key: "weight", Meaning: "its share of new connections, of the weights of all groups with a usable backend", Values: "0 to 65535; 0 receives none", Default: "1"},
	{Key: "backends", Meaning: "its [servers](#fields-of-a-backend), which divide its share by their weights", Values: "as `backends` of a service", Default: "none"},
}

// Backend has the fields of a backend.
var Backend = Table{
	{Key: "address", Meaning: "the server's own address", Values: "unicast, not link-local, not in a pool; of the VIP's family", Default: "required"},
	{Key: "port", Meaning: "its port, which overrides `target_port`; with `dr` and `tunnel` it must equal the service's only `port`", Values: "1 to 65535", Default: "each port's `target_port`"},
	{Key: "weight", Meaning: "its share of new connections", Values: "0 to 65535; 0 receives none", Default: "1"},
	{Key: "state", Meaning: "`drain` and `maint` keep open connections and accept no new ones, `maint` for maintenance by a person; `terminating` accepts new ones only while no backend is ready. UDP clients move to other backends immediately", Values: "`ready`, `drain`, `maint`, `terminating`", Default: "`ready`"},
	{Key: "backup", Meaning: "it receives new connections only if no other backend can", Values: "`true`, `false`", Default: "`false`"},
	{Key: "node", Meaning: "its host", Values: "as `node.name`", Default: "unknown"},
	{Key: "max_connections", Meaning: "open connections and UDP sessions to each of its ports ([more](#connection-limits))", Values: "1 to 10000000; 0 is no limit", Default: "0"},
	{Key: "zone", Meaning: "its location", Values: "as `node.name`", Default: "unknown"},
	{Key: "ports", Meaning: "the service's ports that it serves", Values: "port names: `[\"http\", \"53/udp\"]`", Default: "all"},
	{Key: "for_zones", Meaning: "the zones of its intended clients ([more](#topology-hints))", Values: "up to 64 names", Default: "all clients"},
	{Key: "for_nodes", Meaning: "the nodes of its intended clients", Values: "up to 64 names", Default: "all clients"},
}
