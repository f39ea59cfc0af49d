package reference

// Service has the fields of a service.
var Service = Table{
	{Key: "name", Meaning: "the service's name, unique in its namespace across all sources", Values: "DNS label: 1 to 63 of `a-z`, `0-9` and inner `-`", Default: "required"},
	{Key: "namespace", Meaning: "a prefix of the name", Values: "DNS label", Default: "`default`"},
	{Key: "labels", Meaning: "free text for people and filters", Values: "up to 64; names of 1 to 253, values of up to 1024 printable bytes", Default: "none"},
	{Key: "pool", Meaning: "the pool that provides the VIPs", Values: "a pool's name", Default: "the first with `auto_assign`"},
	{Key: "vips", Meaning: "requested addresses", Values: "at most one per family, each in the pool", Default: "automatic"},
	{Key: "families", Meaning: "address families of the VIPs", Values: "`[\"ipv4\"]`, `[\"ipv6\"]`, or both", Default: "those of `vips`, else those of the pool"},
	{Key: "share_key", Meaning: "services of one namespace with the same key may share one VIP, on different ports", Values: "DNS label", Default: "not shared"},
	{Key: "hostnames", Meaning: "DNS names besides those that follow from `name` and `namespace`", Values: "up to 16 full names in lower case without a trailing dot, each of up to 253 characters: `[\"shop.example.com\"]`", Default: "none"},
	{Key: "ports", Meaning: "the ports of the VIP, [see below](#fields-of-a-port)", Values: "1 to 256", Default: "required"},
	{Key: "backends", Meaning: "the servers, [see below](#fields-of-a-backend)", Values: "up to 10,000; ports x backends up to 100,000, a range of ports counts as one", Default: "none: connections are refused"},
	{Key: "scheduler", Meaning: "how a backend is chosen", Values: "`rr`, `wrr`, `lc`, `wlc`, `sh`, `mh`, `sed`, `nq`, `fo`, `dh`", Default: "`wrr`"},
	{Key: "scheduler_flags", Meaning: "for `sh` and `mh`: `fallback` skips backends with weight 0 (always on, because their clients would be refused during a drain), `port` also hashes the client's port; for UDP with `dr` or `tunnel` and without `affinity`: `one-packet` schedules each datagram separately", Values: "a list of `fallback`, `port`, `one-packet`", Default: "none"},
	{Key: "forward", Meaning: "how packets travel to a backend, [see below](#direct-routing-and-tunnels)", Values: "`nat`, `dr`, `tunnel`", Default: "`nat`"},
	{Key: "affinity", Meaning: "keeps a client on its backend, `{ timeout = \"3h\" }`", Values: "`{}` or a timeout", Default: "none"},
	{Key: "affinity.timeout", Meaning: "how long after the client's last connection", Values: "`\"1s\"` to `\"24h\"` in whole seconds", Default: "`\"3h\"`"},
	{Key: "internal_traffic", Meaning: "the backends available to VIP traffic from this host and from pods, [see below](#traffic-policies)", Values: "`cluster`, `local`", Default: "`cluster`"},
	{Key: "external_traffic", Meaning: "the backends available to other VIP traffic, and to node ports", Values: "`cluster`, `local`", Default: "`cluster`"},
	{Key: "traffic_distribution", Meaning: "the preferred backends under the policy `cluster`", Values: "`any`, `same-zone`, `same-node`", Default: "`any`"},
	{Key: "health_check_node_port", Meaning: "a TCP port of the host that reports by HTTP whether this node has a backend, [see below](#health-port)", Values: "`\"off\"`, `\"auto\"`, or a number from `ipam.node_ports`; only with `external_traffic = \"local\"`", Default: "`\"off\"`"},
	{Key: "masquerade", Meaning: "when this host's address replaces the client's", Values: "`auto` (where a reply would otherwise bypass this host), `always` (not with `dr` and `tunnel`), `never`", Default: "`auto`"},
	{Key: "source_ranges", Meaning: "clients that may reach the VIP, [see below](#source-ranges)", Values: "up to 1024 prefixes or addresses, IPv4 and IPv6", Default: "all"},
	{Key: "proxy_protocol", Meaning: "the PROXY header that each backend connection begins with, for TCP ports, [see below](#proxy-protocol)", Values: "`v1`, `v2`; only with `nat`", Default: "none"},
	{Key: "accept_proxy_from", Meaning: "balancers in front of this host: their connections to TCP ports must begin with a PROXY header, [see below](#proxy-protocol)", Values: "up to 1024 prefixes or addresses; only with `nat`", Default: "none"},
	{Key: "drain_timeout", Meaning: "how long a removed backend may keep its connections", Values: "`\"0s\"` to `\"24h\"`", Default: "`\"60s\"`"},
	{Key: "connect_timeout", Meaning: "how long the userspace proxy waits for a backend to accept a TCP connection; it [tries another one](proxy.md#features) meanwhile, [see below](#timeouts)", Values: "`\"10ms\"` to `\"1m\"`", Default: "`\"3s\"`"},
	{Key: "idle_timeout", Meaning: "how long a TCP connection stays open without a byte in either direction, [see below](#timeouts)", Values: "`\"1s\"` to `\"168h\"`", Default: "`\"1h\"`"},
	{Key: "half_close_timeout", Meaning: "the same, after one side has closed its direction, [see below](#timeouts)", Values: "`\"1s\"` to `\"168h\"`", Default: "`\"30s\"`"},
	{Key: "max_connections", Meaning: "open connections and UDP sessions over all addresses and ports of the service, [see below](#connection-limits)", Values: "1 to 10000000; 0 is no limit", Default: "0"},
	{Key: "max_queue", Meaning: "TCP clients that wait when a limit is reached", Values: "1 to 65535; 0 is no queue", Default: "0"},
	{Key: "queue_timeout", Meaning: "how long each of them waits", Values: "`\"10ms\"` to `\"1m\"`", Default: "`\"5s\"`"},
	{Key: "health", Meaning: "how this host checks the backends, [see below](#health)", Values: "a [health check](health.md#fields-of-a-health-check)", Default: "the [default check](health.md#default-checks)"},
	{Key: "on_unhealthy", Meaning: "what happens to the open connections of a backend that becomes unhealthy", Values: "`drain`: they continue; `reset`: they end", Default: "`drain`"},
	{Key: "slow_start", Meaning: "how long the weight of a backend grows after it begins to take new connections, [see there](health.md#slow-start)", Values: "`\"1s\"` to `\"1h\"` in whole seconds, or `\"0s\"` for off; only with the schedulers `wrr`, `wlc`, `sed` and `nq`", Default: "off"},
	{Key: "panic_threshold", Meaning: "if fewer backends than this are healthy, in percent of the ready ones, health has no effect", Values: "0 (off) to 100", Default: "0"},
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
