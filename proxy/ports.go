package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockdiag"
	"github.com/ironvip/ironvip/vip"
)

// ports knows whether another socket gets the clients of an address and port. A program of sk_lookup would
// take them from it without a word. It may be used concurrently.
type ports struct {
	alone func() bool // no program of another process passes clients to its sockets

	mu    sync.Mutex
	diag  *sockdiag.Conn
	asked bool                         // about all frontends that begin
	taken map[vip.FrontendKey]struct{} // of those
}

// heldError means that a socket of another process gets the clients of a frontend. It is EADDRINUSE.
type heldError struct{ by netip.AddrPort }

func (e heldError) Error() string { return fmt.Sprintf("the socket at %s gets its clients", e.by) }
func (e heldError) Unwrap() error { return unix.EADDRINUSE }

func placeOf(key vip.FrontendKey) sockdiag.Place {
	return sockdiag.Place{At: key.AddrPort(), Protocol: uint8(key.Protocol)}
}

// manyFrontends is how many of them have to begin at once for a list of the host's sockets to cost less than
// a question about each.
const manyFrontends = 64

// ask asks about many frontends at once, for the calls of free until forget. Without an answer, free asks
// about each one.
func (p *ports) ask(keys []vip.FrontendKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = make(map[vip.FrontendKey]struct{})
	if len(keys) >= manyFrontends && p.alone() {
		keys = p.suspects(keys)
	}
	p.asked = p.diag.Taken(len(keys), func(i int) sockdiag.Place { return placeOf(keys[i]) }, func(i int) { p.taken[keys[i]] = struct{}{} }) == nil
}

// errManySockets ends a list with more sockets than there are questions.
var errManySockets = errors.New("more sockets than frontends")

// suspects returns the frontends with the address and port of a socket, and all if the sockets are not known.
// The kernel knows better which of them get packets: a socket may be bound to a device, for example.
func (p *ports) suspects(keys []vip.FrontendKey) (out []vip.FrontendKey) {
	sockets := make(map[sockdiag.Place]struct{})
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
		if !slices.ContainsFunc(keys, func(key vip.FrontendKey) bool { return key.Protocol == protocol }) {
			continue
		}
		err := p.diag.List(uint8(protocol), func(at netip.AddrPort) error {
			if len(sockets) == len(keys) {
				return errManySockets
			}
			if at.Addr().IsUnspecified() { // of both families, perhaps
				at = netip.AddrPortFrom(netip.Addr{}, at.Port())
			}
			sockets[sockdiag.Place{At: at, Protocol: uint8(protocol)}] = struct{}{}
			return nil
		})
		if err != nil {
			return keys
		}
	}
	for _, key := range keys {
		at := placeOf(key)
		_, exact := sockets[at]
		at.At = netip.AddrPortFrom(netip.Addr{}, key.Port)
		if _, everywhere := sockets[at]; exact || everywhere {
			out = append(out, key)
		}
	}
	return out
}

func (p *ports) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, p.taken = false, nil
}

// free returns a heldError if a socket gets the clients of a frontend.
func (p *ports) free(key vip.FrontendKey) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.taken[key]; p.asked && !taken {
		return nil
	}
	by, found, err := p.diag.Lookup(placeOf(key))
	switch {
	case err != nil:
		return fmt.Errorf("ask the kernel who has the port: %w", err)
	case found:
		return heldError{by}
	}
	return nil
}

func (p *ports) close() { p.diag.Close() }
