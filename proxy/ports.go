package proxy

import (
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockdiag"
	"github.com/ironvip/ironvip/vip"
)

// ports knows whether another socket gets the clients of an address and port. A program of sk_lookup would
// take them from it without a word. It may be used concurrently.
type ports struct {
	mu   sync.Mutex
	diag *sockdiag.Conn
}

// heldError means that a socket of another process gets the clients of a frontend. It is EADDRINUSE.
type heldError struct{ by netip.AddrPort }

func (e heldError) Error() string { return fmt.Sprintf("the socket at %s gets its clients", e.by) }
func (e heldError) Unwrap() error { return unix.EADDRINUSE }

// free returns a heldError if a socket gets the clients of a frontend.
func (p *ports) free(key vip.FrontendKey) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	by, found, err := p.diag.Lookup(sockdiag.Place{At: key.AddrPort(), Protocol: uint8(key.Protocol)})
	switch {
	case err != nil:
		return fmt.Errorf("ask the kernel who has the port: %w", err)
	case found:
		return heldError{by}
	}
	return nil
}

func (p *ports) close() { p.diag.Close() }
