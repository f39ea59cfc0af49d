package v1

import "time"

// Traffic is the traffic of a service, a frontend or a backend, as its dataplane counts it. Values
// that a dataplane doesn't count are absent: the userspace proxy counts no packets, inactive
// connections or rates. A counter restarts at 0 with its frontend or backend, and with an agent
// that forwards in userspace.
type Traffic struct {
	Connections uint64  `json:"connections" doc:"given to a backend; a UDP client's address and port count as one"`
	Active      uint64  `json:"active_connections" doc:"open now: established TCP connections, UDP clients active within the timeout"`
	Inactive    *uint64 `json:"inactive_connections,omitempty" doc:"TCP connections that are opening, half closed, or wait for a timer"`
	In          Volume  `json:"in" doc:"from clients"`
	Out         Volume  `json:"out" doc:"to clients"`
	Rates       *Rates  `json:"rates,omitempty" doc:"per second: the kernel's averages over the last seconds"`
}

// Volume is an amount of traffic in one direction.
type Volume struct {
	Bytes   uint64  `json:"bytes" doc:"of whole IP packets with ipvs, of payload with the proxy"`
	Packets *uint64 `json:"packets,omitempty"`
}

// Rates are values per second.
type Rates struct {
	Connections uint64 `json:"connections"`
	In          Volume `json:"in"`
	Out         Volume `json:"out"`
}

// ServiceStats is the traffic of a service, of its frontends and of their backends.
type ServiceStats struct {
	Service   string          `json:"service" doc:"\"name\" or \"namespace/name\""`
	Traffic   Traffic         `json:"traffic" doc:"the sum over the frontends"`
	Frontends []FrontendStats `json:"frontends" doc:"by address and port"`
}

// FrontendStats is one frontend's traffic. Its counters include the traffic of removed backends.
type FrontendStats struct {
	Frontend string         `json:"frontend" doc:"\"192.0.2.10:80/tcp\""`
	Kind     string         `json:"kind"`
	Port     string         `json:"port" doc:"the service port's name"`
	Traffic  *Traffic       `json:"traffic,omitempty" doc:"absent: the dataplane doesn't have this frontend"`
	Backends []BackendStats `json:"backends" doc:"by address; those in the dataplane, including draining ones"`
}

// BackendStats is one backend's traffic through one frontend.
type BackendStats struct {
	Address string  `json:"address" doc:"address:port; the address alone for a range of ports without a target port"`
	Traffic Traffic `json:"traffic"`
}

// BackendConnections is how many connections a backend has through this host. It also exists for a
// backend that its service no longer lists, until its drain ends.
type BackendConnections struct {
	Service     string                `json:"service" doc:"\"name\" or \"namespace/name\""`
	Backend     string                `json:"backend" doc:"the backend's id: address:port, or the address alone"`
	State       string                `json:"state,omitempty" enum:"ready,drain,maint,terminating" doc:"in effect; absent: the service no longer lists it"`
	Connections uint64                `json:"connections" doc:"open connections, as a drain counts them"`
	Frontends   []FrontendConnections `json:"frontends" doc:"those with connections, by address and port"`
}

// FrontendConnections is how many connections of a backend came through a frontend.
type FrontendConnections struct {
	Frontend    string `json:"frontend" doc:"\"192.0.2.10:80/tcp\""`
	Connections uint64 `json:"connections"`
}

// StatsList is the traffic of every service in the dataplane, sorted by namespace and name.
type StatsList struct {
	Items []ServiceTotal `json:"items"`
	Next  string         `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// ServiceTotal is a service's traffic, summed over its frontends.
type ServiceTotal struct {
	Service string  `json:"service" doc:"\"name\" or \"namespace/name\""`
	Traffic Traffic `json:"traffic"`
}

// Top is a line of the stream of the busiest services.
type Top struct {
	Time     time.Time    `json:"time" doc:"the end of the interval"`
	Seconds  float64      `json:"seconds" doc:"the length of the interval; all rates are per second of it"`
	Services int          `json:"services" doc:"with counters"`
	Sum      TopService   `json:"sum" doc:"of all services"`
	Items    []TopService `json:"items" doc:"the busiest first"`
	Problem  *Problem     `json:"problem,omitempty" doc:"why the counters could not be read"`
}

// TopService is what a service has carried in an interval.
type TopService struct {
	Service     string  `json:"service,omitempty"`
	Active      uint64  `json:"active_connections" doc:"at the end"`
	Connections float64 `json:"connections_per_second" doc:"new ones"`
	In          float64 `json:"bytes_in_per_second" doc:"from clients"`
	Out         float64 `json:"bytes_out_per_second" doc:"to clients"`
}
