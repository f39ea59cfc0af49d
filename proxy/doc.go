// Package proxy is the userspace dataplane: a reconcile.Plane that forwards
// TCP and UDP with ordinary sockets. On pools inside 127.0.0.0/8 it needs no
// rights at all; elsewhere it puts VIP addresses on its own device when it may.
//
// In come frontends through Apply; out goes traffic: TCP spliced in the kernel,
// UDP through a session per client. It owns the listeners it opened and host
// addresses on Options.Device, and touches no other address, device or rule.
// Nothing of it outlives the process but those addresses. It chooses no
// policy: weights, drain deadlines and addresses are decided before it.
//
// Read target.go, then frontend.go, then tcp.go or udp.go. Linux only.
package proxy
