package sockets

import (
	"fmt"
	"os"
	"strconv"
)

// firstPassed is the first descriptor that a service manager passes (SD_LISTEN_FDS_START).
const firstPassed = 3

// maxPassed bounds the descriptors that are looked at. systemd can't pass more: the names of all have
// to fit into one environment variable of 128 KiB.
const maxPassed = 1 << 16

// FromEnvironment returns a set with the sockets that the service manager has passed, by the
// variables LISTEN_FDS and LISTEN_PID (see sd_listen_fds(3)). It removes the variables, so that no
// child takes them for its own. Call it before the process opens anything. The problems name what
// can't be used.
func FromEnvironment() (*Set, []error) {
	s := &Set{}
	fds, err := Passed()
	if err != nil {
		return s, []error{err}
	}
	return s, s.Inherit(fds)
}

// Passed returns the descriptors that the service manager has passed, as FromEnvironment.
func Passed() ([]int, error) {
	pid, count := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name)
	}
	if count == "" {
		return nil, nil
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, fmt.Errorf("LISTEN_FDS ignored: LISTEN_PID is %q, and this process is %d", pid, os.Getpid())
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxPassed {
		return nil, fmt.Errorf("LISTEN_FDS ignored: %q is not a number up to %d", count, maxPassed)
	}
	fds := make([]int, n)
	for i := range fds {
		fds[i] = firstPassed + i
	}
	return fds, nil
}
