package ipvs

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// settings are the sysctls that the dataplane always needs. Kernel is the version of the
// running one.
func settings(kernel linux.Version) []host.Setting {
	all := []host.Setting{
		{Key: "ipv4/ip_forward", Value: "1", Why: "packets to backends on other hosts are forwarded"},
		{Key: "ipv4/vs/conntrack", Value: "1", Why: "masquerading and refusing need connection tracking of ipvs connections"},
		expireConnections,
		{Key: "ipv4/vs/expire_quiescent_template", Value: "1", Why: "affinity doesn't hold clients at a backend of weight 0", Optional: true},
	}
	// From 4.1 to before 5.9, a client that reuses a port within the time-wait of its last
	// connection waits for a second (kubernetes#81775). Later kernels need the default, 1.
	if !kernel.Before(4, 1) && kernel.Before(5, 9) {
		all = append(all, host.Setting{Key: "ipv4/vs/conn_reuse_mode", Value: "0", Why: "new connections from a reused port wait for a second", Optional: true})
	}
	return all
}

// estimationOff is the setting with which the kernel doesn't update its counters. The
// operator sets it.
var estimationOff = host.Setting{Key: "ipv4/vs/run_estimation", Value: "0"}

// expireConnections lets the next packet of a deleted backend's connection go to another
// backend. keepConnections drops it, while a backend is added again.
var (
	expireConnections = host.Setting{Key: "ipv4/vs/expire_nodest_conn", Value: "1", Why: "clients of a deleted backend get another at once", Optional: true}
	keepConnections   = host.Setting{Key: "ipv4/vs/expire_nodest_conn", Value: "0", Why: "connections stay with a backend that changes its place in the order of backends", Optional: true}
)

// optionalSettings are sysctls, and the timeout of idle TCP connections, that some frontends need. They stay set
// when the frontends are gone, and the next read of the kernel forgets them.
type optionalSettings struct {
	forward6, agree, realServer, bind6 bool

	idle time.Duration
}

// with adds what f needs.
func (n optionalSettings) with(f *vip.Frontend) optionalSettings {
	if f.Kind == vip.OnRealServer {
		n.realServer, n.bind6 = true, n.bind6 || f.Key.Addr.Is6()
		return n
	}
	n.forward6 = n.forward6 || f.Key.Addr.Is6()
	n.agree = n.agree || isHash(f.Scheduler)
	n.idle = max(n.idle, usage.IdleTimeout(f))
	return n
}

func (n optionalSettings) settings() (all []host.Setting) {
	if n.forward6 {
		all = append(all, forwarding6)
	}
	if n.agree {
		all = append(all, sloppy...)
	}
	if n.realServer {
		all = append(all, quietARP...)
	}
	if n.bind6 {
		all = append(all, nonlocalBind6)
	}
	if n.idle > 0 {
		all = append(all, host.Remembered(n.idle))
	}
	return all
}

// sloppy lets a host continue a TCP or SCTP connection that began on another host with
// the same scheduler table.
var sloppy = []host.Setting{
	{Key: "ipv4/vs/sloppy_tcp", Value: "1", Why: "connections that move here from another director go on"},
	{Key: "ipv4/vs/sloppy_sctp", Value: "1", Why: "connections that move here from another director go on", Optional: true},
}

// quietARP keeps a real server from answering ARP requests for virtual addresses, and
// from using them in its own requests.
var quietARP = []host.Setting{
	{Key: "ipv4/conf/all/arp_ignore", Value: "1", Why: "the network must find virtual addresses at the directors"},
	{Key: "ipv4/conf/all/arp_announce", Value: "2", Why: "the network must find virtual addresses at the directors"},
}

// nonlocalBind6 lets the listeners of a real server bind to virtual addresses. For those of IPv4, a local route suffices.
var nonlocalBind6 = host.Setting{Key: "ipv6/ip_nonlocal_bind", Value: "1", Why: "listeners bind to virtual addresses of IPv6, which are local routes"}

// forwarding6 is needed for IPv6 frontends. It makes the kernel ignore router
// advertisements on interfaces with accept_ra=1.
var forwarding6 = host.Setting{Key: "ipv6/conf/all/forwarding", Value: "1", Why: "packets to IPv6 backends on other hosts are forwarded"}

const timeoutName = "ipvs timeout"

// checkTimeout compares how long ipvs remembers idle TCP connections with what frontends need.
func (t *Target) checkTimeout() host.Finding {
	f := host.Finding{Name: timeoutName, OK: true}
	have, err := t.kernel.IdleTimeout(context.Background())
	switch {
	case err != nil:
		f.OK, f.Detail = false, err.Error()
	case have < t.optional.idle:
		f.OK, f.Detail = false, fmt.Sprintf("idle TCP connections are forgotten after %s: the longest idle_timeout of a service is %s", have, t.optional.idle)
		f.Remedy = fmt.Sprintf("ipvsadm --set %.0f 0 0", t.optional.idle.Seconds())
	default:
		f.Detail = have.String()
	}
	return f
}

// setTimeout raises the timeout to what frontends need. The kernel has one for all services, those of other programs
// included, so it is never shortened.
func (t *Target) setTimeout() {
	if t.optional.idle == 0 {
		return
	}
	f := t.checkTimeout()
	if !f.OK {
		if err := t.kernel.SetIdleTimeout(context.Background(), t.optional.idle); err != nil {
			f.Detail += " (and can't be set: " + err.Error() + ")"
		} else {
			f = t.checkTimeout()
		}
	}
	t.findings.Report(t.opt.Log, f)
}
