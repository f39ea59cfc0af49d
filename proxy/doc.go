// Package proxy is the userspace dataplane: a reconcile.Plane that forwards TCP and UDP with
// ordinary sockets. Pools inside 127.0.0.0/8 need no privileges. For other pools it puts VIP
// addresses on its own device, if it has the privilege.
//
// Its input is frontends, through Apply. It splices TCP connections in the kernel and forwards UDP
// through a session per client. It owns its listeners and the host addresses on Options.Device, and
// changes no other address, device or rule. Only those addresses remain after the process ends. It
// makes no policy decisions: weights, drain deadlines and addresses are its input.
//
// Read target.go, then frontend.go, then tcp.go or udp.go. Linux only.
package proxy
