package ipvs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// setting is one sysctl below net that the dataplane needs.
type setting struct {
	key, value string // "ipv4/vs/conntrack"
	why        string
	optional   bool // kernels without it do well
}

// settings are what the dataplane needs whatever it programs. Kernel is the
// running one's version.
func settings(kernel version) []setting {
	all := []setting{
		{key: "ipv4/ip_forward", value: "1", why: "packets to backends on other hosts are forwarded"},
		{key: "ipv4/vs/conntrack", value: "1", why: "masquerading and refusing need connection tracking of ipvs connections"},
		expireConnections,
		{key: "ipv4/vs/expire_quiescent_template", value: "1", why: "affinity doesn't hold clients at a backend of weight 0", optional: true},
	}
	// From 4.1 to before 5.9, reusing a client's port within the time-wait of
	// its last connection costs a second each time (kubernetes#81775); later
	// kernels need the default, 1.
	if !kernel.before(4, 1) && kernel.before(5, 9) {
		all = append(all, setting{key: "ipv4/vs/conn_reuse_mode", value: "0", why: "new connections from a reused port wait for a second", optional: true})
	}
	return all
}

// countersStill is the setting of hosts on which the kernel doesn't sum up its
// counters of packets. It is the operator's.
var countersStill = setting{key: "ipv4/vs/run_estimation", value: "0"}

// expireConnections is what becomes of the connections of a deleted backend at
// their next packet, keepConnections the opposite, for a moment.
var (
	expireConnections = setting{key: "ipv4/vs/expire_nodest_conn", value: "1", why: "clients of a deleted backend get another at once", optional: true}
	keepConnections   = setting{key: "ipv4/vs/expire_nodest_conn", value: "0", why: "connections stay with a backend that changes its place in the order of backends", optional: true}
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

func (n needs) settings() (all []setting) {
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
var sloppy = []setting{
	{key: "ipv4/vs/sloppy_tcp", value: "1", why: "connections that move here from another director go on"},
	{key: "ipv4/vs/sloppy_sctp", value: "1", why: "connections that move here from another director go on", optional: true},
}

// quietARP keeps a real server from answering for the virtual addresses that it
// holds, and from naming them in its own questions.
var quietARP = []setting{
	{key: "ipv4/conf/all/arp_ignore", value: "1", why: "the network must find virtual addresses at the directors"},
	{key: "ipv4/conf/all/arp_announce", value: "2", why: "the network must find virtual addresses at the directors"},
}

// forwarding6 is needed once an IPv6 frontend is. It makes the kernel ignore
// router advertisements on interfaces with accept_ra=1.
var forwarding6 = setting{key: "ipv6/conf/all/forwarding", value: "1", why: "packets to IPv6 backends on other hosts are forwarded"}

// sysctls reads and writes sysctls of the calling thread's network namespace.
type sysctls struct{ root string }

const procSysNet = "/proc/sys/net"

// check compares a setting with the kernel's.
func (s sysctls) check(w setting) Finding {
	f := Finding{Name: "sysctl " + sysctlName(w.key), OK: true, Detail: w.value}
	have, err := os.ReadFile(filepath.Join(s.root, w.key))
	switch {
	case errors.Is(err, fs.ErrNotExist) && w.optional:
		f.Detail = "this kernel has no such setting"
		return f
	case err != nil:
		f.OK, f.Detail = false, fmt.Sprintf("can't be read: %v", errors.Unwrap(err))
	case string(bytes.TrimSpace(have)) != w.value:
		f.OK, f.Detail = false, fmt.Sprintf("is %s, needs %s: %s", bytes.TrimSpace(have), w.value, w.why)
	}
	if !f.OK {
		f.Remedy = fmt.Sprintf("sysctl -w %s=%s", sysctlName(w.key), w.value)
	}
	return f
}

// set makes a setting true where it isn't, and says how that went.
func (s sysctls) set(w setting) Finding {
	f := s.check(w)
	if f.OK {
		return f
	}
	if err := s.write(w); err != nil {
		f.Detail += fmt.Sprintf(" (and can't be set: %v)", errors.Unwrap(err))
		return f
	}
	return s.check(w)
}

func (s sysctls) write(w setting) error {
	file, err := os.OpenFile(filepath.Join(s.root, w.key), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(w.value)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

func sysctlName(key string) string { return "net." + strings.ReplaceAll(key, "/", ".") }

// version is a kernel's.
type version struct{ major, minor int }

func (v version) before(major, minor int) bool {
	return v.major < major || v.major == major && v.minor < minor
}

// parseVersion reads "6.1.0-56-cloud-amd64". What it can't read is 0.0.
func parseVersion(release string) version {
	major, rest, _ := strings.Cut(release, ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	var v version
	v.major, _ = strconv.Atoi(major)
	v.minor, _ = strconv.Atoi(minor)
	return v
}

// kernelRelease returns the running kernel's release, "" if it can't be told.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
