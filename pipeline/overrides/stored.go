package overrides

import (
	"fmt"
	"strings"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/vip"
)

// Folder is the folder of the overrides in the fleet's tree. Keys are NAMESPACE/NAME/BACKEND.
const Folder = "states"

// Override is the stored override of one backend. The state "ready" is an ended override. It stays
// for a day, so that every host learns who ended it and when.
type Override struct {
	State string    `json:"state"`          // see ParseState
	Since time.Time `json:"since"`          // when it was set
	Node  string    `json:"node,omitempty"` // in a fleet, the node through which it was set; that node also sweeps it

	Author string     `json:"author,omitempty"` // as in vip.BackendState
	Until  *time.Time `json:"until,omitempty"`  // when it expires; nil: never
}

// Ended reports whether the override is no longer in effect because an operator or its expiry ended
// it.
func (o Override) Ended() bool { return o.State == vip.Ready.String() }

// until returns when the override expires; zero: never.
func (o Override) until() vip.Instant {
	if o.Until == nil {
		return 0
	}
	return vip.InstantOf(*o.Until)
}

// Shared returns the overrides of a fleet. Call it before the tree runs.
func Shared(tree *fleet.Tree) *registry.Shared[Override] {
	return registry.NewShared(tree, Folder, func(key string, o Override) error { _, err := o.state(key); return err })
}

// ParseState parses a state that an operator can set. The error is a *registry.InvalidError.
func ParseState(text string) (vip.State, error) {
	for _, s := range []vip.State{vip.Ready, vip.Drain, vip.Maint} {
		if s.String() == text {
			return s, nil
		}
	}
	return 0, invalid("state", fmt.Sprintf("%q is not a state", text), "use ready, drain or maint")
}

func invalid(field, message, hint string) error {
	return &registry.InvalidError{Problems: []vip.Problem{{Code: vip.CodeInvalid, Field: field, Message: message, Hint: hint}}}
}

// state returns the override's state, or the reason why the value at its key is invalid.
func (o Override) state(at string) (vip.State, error) {
	key, err := parseKey(at)
	if err != nil {
		return 0, err
	}
	if storeKey(key) != at {
		return 0, fmt.Errorf("key %q is not canonical: use %q", at, storeKey(key))
	}
	state, err := ParseState(o.State)
	if err != nil {
		return 0, fmt.Errorf("%q is not a state", o.State)
	}
	return state, nil
}

func storeKey(k vip.BackendKey) string { return registry.Key(k.Service) + "/" + k.ID() }

func parseKey(at string) (vip.BackendKey, error) {
	parts := strings.SplitN(at, "/", 3)
	if len(parts) != 3 {
		return vip.BackendKey{}, fmt.Errorf("key %q names no backend: use NAMESPACE/NAME/BACKEND", at)
	}
	addr, port, err := vip.ParseBackendID(parts[2])
	return vip.BackendKey{Service: registry.ServiceOf(at), Address: addr, Port: port}, err
}
