package proxy

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/bpf"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/proxy/steer"
	"github.com/ironvip/ironvip/vip"
)

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
	if !t.opts.SkLookup && len(inherited) == 0 {
		t.about = Entrance{Reason: "dataplane.sk_lookup is never"}
		return
	}
	s, err := steer.New(steer.Options{Sockets: t.opts.Sockets, Loops: &t.loops, Reserve: t.balance.Capacity.AddListener,
		Release: t.balance.Capacity.RemoveListener, Failed: t.missed, Log: t.log}, inherited)
	if err == nil {
		t.steering, t.about = s, Entrance{SkLookup: true}
		return
	}
	t.about = Entrance{Reason: "sk_lookup can't work here: " + err.Error(), Hint: bpf.Hint(err)}
	if len(inherited) > 0 {
		t.unreachable = fmt.Errorf("continue with the sk_lookup program of the earlier process: %w", err)
	}
}

// missed takes in an error that passes, of a client whose frontend isn't known.
func (t *Target) missed(err error) {
	t.balance.Complain(vip.FrontendKey{}, "accept or receive", err)
	if loop.LacksDescriptor(err) { // the client waits
		t.balance.Refuse(nil, balance.NoDescriptor)
	}
}

// listen opens the frontend's listener. Two kinds of frontends have sockets of their own, also beside sk_lookup: those of
// node ports, because the port may belong to another process, and those that have inherited one, because clients may wait
// in its queue. A socket of its own is bound to an address that the host hasn't got yet only for a VIP.
func (f *frontend) listen() error {
	l, err := f.newListener()
	if err == nil {
		f.listener = l
	}
	return err
}

func (f *frontend) newListener() (listener, error) {
	s, isNew := f.target.steering, f.listener == nil
	steered := s != nil && f.spec.Kind == vip.OnVIP && !f.target.opts.Sockets.Has(f.Key.Protocol.String(), f.Key.AddrPort())
	switch {
	case !steered && f.spec.Kind != vip.OnVIP && !host.CanBind(f.Key.Addr):
		return nil, unix.EADDRNOTAVAIL
	case steered && f.Key.Protocol == vip.UDP:
		return listenUDP(f, &steeredUDP{s: s, isNew: isNew})
	case steered:
		return &steeredTCP{s: s, key: f.Key}, s.EnterTCP(f.Key, isNew, f.welcome)
	case f.Key.Protocol == vip.UDP:
		return listenUDP(f, ownSocket{})
	}
	return listenTCP(f)
}
