package steer

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockdiag"
	"github.com/ironvip/ironvip/vip"
)

// HeldError means that a socket of another process gets the clients of a frontend. It is EADDRINUSE.
type HeldError struct{ By netip.AddrPort }

func (e HeldError) Error() string { return fmt.Sprintf("the socket at %s gets its clients", e.By) }
func (e HeldError) Unwrap() error { return unix.EADDRINUSE }

// HolderOf returns where the socket is bound that keeps a frontend from its port: there, or on all addresses. If
// the kernel doesn't say it, this is the frontend's own address.
func HolderOf(key vip.FrontendKey) netip.AddrPort {
	diag, err := sockdiag.Open()
	if err != nil {
		return key.AddrPort()
	}
	defer diag.Close()
	by, found, err := diag.Lookup(key.AddrPort(), uint8(key.Protocol))
	if err != nil || !found {
		return key.AddrPort()
	}
	return by
}

// isFree returns a HeldError if a socket gets the clients of a frontend. A program of sk_lookup would take them
// from it without a word.
func isFree(diag *sockdiag.Conn, key vip.FrontendKey) error {
	by, found, err := diag.Lookup(key.AddrPort(), uint8(key.Protocol))
	switch {
	case err != nil:
		return fmt.Errorf("ask the kernel who has the port: %w", err)
	case found:
		return HeldError{by}
	}
	return nil
}
