package proxy

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/bpf"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// entrance is how the clients of frontends reach this process. New selects one.
type entrance interface {
	// listen opens the listener of a frontend.
	listen(f *frontend) (listener, error)
	// refresh reads what the kernel has, for the method died of listeners.
	refresh() error
	// settle refuses the clients of frontends that an earlier process had and this one doesn't.
	// Until then they wait.
	settle()
	// stop leaves new clients to other processes. close follows.
	stop()
	close()
}

// Entrance describes how clients reach the proxy.
type Entrance struct {
	SkLookup bool   // one socket for each protocol and family, selected by the kernel's sk_lookup
	Reason   string // why not
	Hint     string // what allows sk_lookup; may be empty
}

// String returns "clients arrive by sk_lookup", or "clients arrive at one listener for each frontend: "
// with the reason and the hint.
func (e Entrance) String() string {
	switch {
	case e.SkLookup:
		return "clients arrive by sk_lookup"
	case e.Hint != "":
		return "clients arrive at one listener for each frontend: " + e.Reason + " (" + e.Hint + ")"
	}
	return "clients arrive at one listener for each frontend: " + e.Reason
}

// Entrance returns how clients reach the proxy. It does not change.
func (t *Target) Entrance() Entrance { return t.about }

// enter selects the entrance. Clients can't reach a Target that doesn't continue with the program of an earlier
// process, so Apply fails then, and the program stays as it is.
func (t *Target) enter() {
	inherited := t.opts.Sockets.InheritedBPF()
	t.entrance = ownListeners{}
	if !t.opts.SkLookup && len(inherited) == 0 {
		t.about = Entrance{Reason: "dataplane.sk_lookup is never"}
		return
	}
	s, err := newSteering(t, inherited)
	if err == nil {
		t.entrance, t.about = s, Entrance{SkLookup: true}
		return
	}
	t.about = Entrance{Reason: "sk_lookup can't work here: " + err.Error(), Hint: bpf.Hint(err)}
	if len(inherited) > 0 {
		t.unreachable = fmt.Errorf("continue with the sk_lookup program of the earlier process: %w", err)
	}
}

// ownListeners is the entrance with a socket for each frontend.
type ownListeners struct{}

// listen binds to an address that the host hasn't got yet only for a VIP.
func (ownListeners) listen(f *frontend) (listener, error) {
	if f.spec.Kind != vip.OnVIP && !host.CanBind(f.Key.Addr) {
		return nil, unix.EADDRNOTAVAIL
	}
	if f.Key.Protocol == vip.UDP {
		return listenUDP(f, ownSocket{})
	}
	return listenTCP(f)
}

func (ownListeners) refresh() error { return nil }
func (ownListeners) settle()        {}
func (ownListeners) stop()          {}
func (ownListeners) close()         {}
