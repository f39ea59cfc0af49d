package linux

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Version is a kernel's version.
type Version struct{ major, minor int }

func (v Version) Before(major, minor int) bool {
	return v.major < major || v.major == major && v.minor < minor
}

// ParseVersion reads a release such as "6.1.0-56-cloud-amd64". It returns 0.0 for an
// unknown format.
func ParseVersion(release string) Version {
	major, rest, _ := strings.Cut(release, ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	var v Version
	v.major, _ = strconv.Atoi(major)
	v.minor, _ = strconv.Atoi(minor)
	return v
}

// Release returns the running kernel's release, or "" if it is unknown.
func Release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
