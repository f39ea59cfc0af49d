// Package proxy is the userspace dataplane: a reconcile.Plane that forwards TCP and UDP with
// ordinary sockets, and needs no privileges for ports that every process may have.
//
// Its input is frontends, through Apply. It relays TCP connections and forwards UDP through a session per client. It owns
// its listeners, and changes no address, device or rule: a frontend listens at the address of a VIP whether or not the
// host has it. Nothing remains after the process ends. It makes no policy decisions: weights, drain deadlines and addresses
// are its input.
//
// The parts; arrows go from package proxy down:
//
//	remote      what an agent has of the proxy, process what runs it
//	proxy       the plane, listeners and entrances, connections and sessions
//	steer       which socket gets the clients of VIPs, by sk_lookup
//	balance     which backend a client gets, queues, limits, counters
//	passive     what connections show of backends; pick: schedulers; proxyproto: PROXY headers
//	loop        event loops, sockets, deadlines
//
// Here, read target.go and frontend.go; then tcp.go, dial.go and relay.go, or udp.go; then entrance.go, which is how
// clients reach a frontend. Linux only.
package proxy
