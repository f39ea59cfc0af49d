// Package proxy is the userspace dataplane: a reconcile.Plane that forwards TCP and UDP with
// ordinary sockets, and needs no privileges for ports that every process may have.
//
// Its input is frontends, through Apply. It relays TCP connections in a few epoll loops and forwards UDP
// through a session per client. It owns its listeners, and changes no address, device or rule: a frontend listens at the
// address of a VIP whether or not the host has it. An entrance (entrance.go) is how clients reach it: by a
// listener for each frontend, or by sk_lookup (steering.go). Nothing remains after the process ends. It
// makes no policy decisions: weights, drain deadlines and addresses are its input. Package process runs it, and package
// remote is what an agent has of it.
//
// Read target.go and frontend.go; then loop.go and intake.go; then tcp.go, dial.go and relay.go, or udp.go. Linux only.
package proxy
