package ipvs

import (
	"github.com/ironvip/ironvip/ipvs/internal/host"
	"github.com/ironvip/ironvip/vip"
)

// settings are what the dataplane needs whatever it programs. Kernel is the
// running one's version.
func settings(kernel host.Version) []host.Setting {
	all := []host.Setting{
		{Key: "ipv4/ip_forward", Value: "1", Why: "packets to backends on other hosts are forwarded"},
		{Key: "ipv4/vs/conntrack", Value: "1", Why: "masquerading and refusing need connection tracking of ipvs connections"},
		expireConnections,
		{Key: "ipv4/vs/expire_quiescent_template", Value: "1", Why: "affinity doesn't hold clients at a backend of weight 0", Optional: true},
	}
	// From 4.1 to before 5.9, reusing a client's port within the time-wait of
	// its last connection costs a second each time (kubernetes#81775); later
	// kernels need the default, 1.
	if !kernel.Before(4, 1) && kernel.Before(5, 9) {
		all = append(all, host.Setting{Key: "ipv4/vs/conn_reuse_mode", Value: "0", Why: "new connections from a reused port wait for a second", Optional: true})
	}
	return all
}

// countersStill is the setting of hosts on which the kernel doesn't sum up its
// counters of packets. It is the operator's.
var countersStill = host.Setting{Key: "ipv4/vs/run_estimation", Value: "0"}

// expireConnections is what becomes of the connections of a deleted backend at
// their next packet, keepConnections the opposite, for a moment.
var (
	expireConnections = host.Setting{Key: "ipv4/vs/expire_nodest_conn", Value: "1", Why: "clients of a deleted backend get another at once", Optional: true}
	keepConnections   = host.Setting{Key: "ipv4/vs/expire_nodest_conn", Value: "0", Why: "connections stay with a backend that changes its place in the order of backends", Optional: true}
)

// needs are what single frontends need beyond settings. What one needs stays set
// when it has gone.
type needs struct{ forward6, agree, realServer bool }

// with adds what f needs.
func (n needs) with(f *vip.Frontend) needs {
	if f.Kind == vip.OnRealServer {
		n.realServer = true
		return n
	}
	n.forward6 = n.forward6 || f.Key.Addr.Is6()
	n.agree = n.agree || hashes(f.Scheduler)
	return n
}

func (n needs) settings() (all []host.Setting) {
	if n.forward6 {
		all = append(all, forwarding6)
	}
	if n.agree {
		all = append(all, sloppy...)
	}
	if n.realServer {
		all = append(all, quietARP...)
	}
	return all
}

// sloppy lets a host go on with a connection that began on another one that
// chooses alike: one packet in its middle is enough.
var sloppy = []host.Setting{
	{Key: "ipv4/vs/sloppy_tcp", Value: "1", Why: "connections that move here from another director go on"},
	{Key: "ipv4/vs/sloppy_sctp", Value: "1", Why: "connections that move here from another director go on", Optional: true},
}

// quietARP keeps a real server from answering for the virtual addresses that it
// holds, and from naming them in its own questions.
var quietARP = []host.Setting{
	{Key: "ipv4/conf/all/arp_ignore", Value: "1", Why: "the network must find virtual addresses at the directors"},
	{Key: "ipv4/conf/all/arp_announce", Value: "2", Why: "the network must find virtual addresses at the directors"},
}

// forwarding6 is needed once an IPv6 frontend is. It makes the kernel ignore
// router advertisements on interfaces with accept_ra=1.
var forwarding6 = host.Setting{Key: "ipv6/conf/all/forwarding", Value: "1", Why: "packets to IPv6 backends on other hosts are forwarded"}
