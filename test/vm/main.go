//go:build linux

// Command vmrun runs a program, usually a compiled Go test binary, as root in a small virtual machine whose kernel
// has IPVS: go test -exec .cache/vm/vmrun ./ipvs/...
//
// In goes a program with its arguments, its package's testdata and the tools tests use as witnesses (ipvsadm, nft, ip,
// conntrack, ipset); out come its output, live, its profile files and its exit status. The one binary is both ends: the
// host's runner, and pid 1 of the guest. It owns the QEMU process it starts and nothing outlives it. It needs no
// root, no network and no hardware virtualisation; the guest has no network either, but for the ports of the host's
// loopback that it is given by name (see reach.go). It never writes outside the result files that were asked for, and
// never loads anything into the host's kernel. setup.sh prepares the kernel and builds it; docs/testing-vm.md says more.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
)

// Exit statuses of the runner itself, those of timeout(1) and env(1); any other is the program's own, or 128 plus
// the signal that ended it.
const (
	exitTimeout = 124
	exitRunner  = 125
)

func main() {
	if os.Getpid() == 1 {
		if _, err := os.Stat(jobFile); err == nil {
			guestMain() // never returns
		}
	}
	// QEMU is started with a parent-death signal, which is bound to the thread that forks: keep that the main thread.
	runtime.LockOSThread()
	os.Exit(hostMain())
}

func hostMain() int {
	if len(os.Args) == 3 && os.Args[1] == relayFlag {
		return relay(os.Args[2])
	}
	o, err := parseOptions(os.Args[1:], os.Environ())
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		var code int
		if code, err = run(o); err == nil {
			return code
		}
	}
	fmt.Fprintf(os.Stderr, "vmrun: %v\n", err)
	if errors.Is(err, errTimeout) {
		return exitTimeout
	}
	return exitRunner
}
