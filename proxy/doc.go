// Package proxy is the userspace dataplane: a reconcile.Plane that forwards TCP and UDP with
// ordinary sockets. Pools inside 127.0.0.0/8 need no privileges. For other pools it puts VIP
// addresses on its own device, if it has the privilege.
//
// Its input is frontends, through Apply. It relays TCP connections in a few epoll loops and forwards UDP
// through a session per client. It owns its listeners and the host addresses on Options.Device, and
// changes no other address, device or rule. An entrance (entrance.go) is how clients reach it: by a
// listener for each frontend, or by sk_lookup (steering.go). Only addresses remain after the process ends. It
// makes no policy decisions: weights, drain deadlines and addresses are its input.
//
// Read target.go and frontend.go; then tcp.go, dial.go and relay.go, or udp.go. Linux only.
package proxy
