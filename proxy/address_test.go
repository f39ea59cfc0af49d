package proxy

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// noDevice is the device of a process without rights.
type noDevice struct{}

func (noDevice) list() ([]netip.Addr, error) { return nil, nil }
func (noDevice) add(netip.Addr) error        { return unix.EPERM }
func (noDevice) remove(netip.Addr) error     { return unix.EPERM }
