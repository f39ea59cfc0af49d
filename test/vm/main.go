//go:build linux

// Command vmrun runs a program, usually a compiled Go test binary, as root in a small virtual
// machine with IPVS in its kernel: go test -exec .cache/vm/vmrun ./ipvs/...
//
// Its inputs are a program with its arguments, its package's testdata, and tools for tests
// (ipvsadm, nft, ip, conntrack, ipset). Its outputs are the program's output while it runs, its
// profile files and its exit status. The binary is both the host's runner and pid 1 of the guest.
//
// It owns the QEMU process that it starts, and nothing outlives it. It needs no root, no network
// and no hardware virtualization. The guest has no network either, except for explicitly listed
// ports of the host's loopback (see reach.go). It writes only the requested result files, and never
// loads anything into the host's kernel. setup.sh prepares the kernel and builds the binary. See
// docs/testing-vm.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
)

// Exit statuses of the runner itself, as in timeout(1) and env(1). Others are the program's own, or
// 128 plus the signal that ended it.
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
	// QEMU's parent-death signal is bound to the thread that forks. Keep the main thread for that.
	runtime.LockOSThread()
	os.Exit(hostMain())
}

func hostMain() int {
	if len(os.Args) == 2 && os.Args[1] == performFlag {
		return performMain()
	}
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
