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
		{key: "ipv4/vs/expire_nodest_conn", value: "1", why: "clients of a deleted backend get another at once", optional: true},
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
