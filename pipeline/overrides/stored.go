package overrides

import (
	"fmt"
	"strings"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/vip"
)

// Folder is the folder of the overrides in the fleet's tree. Keys are NAMESPACE/NAME/BACKEND, or
// NAMESPACE/NAME/GROUP.
const Folder = "states"

// Override is the stored override of one backend or group. The state "ready" is an ended override. It stays
// for a day, so that every host learns who ended it and when.
type Override struct {
	State  string    `json:"state,omitempty"`  // see ParseState; of a group: "ready", or none with a Weight
	Weight *uint32   `json:"weight,omitempty"` // of a group
	Since  time.Time `json:"since"`            // when it was set
	Node   string    `json:"node,omitempty"`   // in a fleet, the node through which it was set; that node also sweeps it

	Author string     `json:"author,omitempty"` // as in vip.BackendState
	Until  *time.Time `json:"until,omitempty"`  // when it expires; nil: never
}

// Ended reports whether the override is no longer in effect because an operator or its expiry ended
// it.
func (o Override) Ended() bool { return o.State == vip.Ready.String() }

// Sets returns what the override sets: "drain", or "weight 10".
func (o Override) Sets() string {
	if o.Weight != nil {
		return fmt.Sprintf("weight %d", *o.Weight)
	}
	return o.State
}

// until returns when the override expires; zero: never.
func (o Override) until() vip.Instant {
	if o.Until == nil {
		return 0
	}
	return vip.InstantOf(*o.Until)
}

// Shared returns the overrides of a fleet. Call it before the tree runs.
func Shared(tree *fleet.Tree) *registry.Shared[Override] {
	return registry.NewShared(tree, Folder, func(key string, o Override) error { return o.Check(key) })
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

// Check returns the reason why the value at its key is invalid, or nil.
func (o Override) Check(at string) error {
	_, err := o.row(at)
	return err
}

// row returns the row of the value at its key, or the reason why it is invalid.
func (o Override) row(at string) (vip.BackendState, error) {
	key, err := parseKey(at)
	row := vip.BackendState{Backend: key.BackendKey, Group: key.Group, Since: vip.InstantOf(o.Since), Until: o.until(), Author: o.Author, Node: o.Node}
	switch {
	case err != nil:
		return row, err
	case storeKey(key) != at:
		return row, fmt.Errorf("key %q is not canonical: use %q", at, storeKey(key))
	case (key.Group == "" || o.Ended()) != (o.Weight == nil), o.Weight != nil && *o.Weight > vip.MaxWeight:
		return row, fmt.Errorf("a group has a weight from 0 to %d, and a backend has none", vip.MaxWeight)
	case o.Weight != nil:
		row.Weight = *o.Weight
	default:
		if row.State, err = ParseState(o.State); err != nil {
			return row, fmt.Errorf("%q is not a state", o.State)
		}
	}
	return row, nil
}

func storeKey(k vip.OverrideKey) string { return registry.Key(k.Service) + "/" + k.ID() }

func parseKey(at string) (vip.OverrideKey, error) {
	parts := strings.SplitN(at, "/", 3)
	if len(parts) != 3 {
		return vip.OverrideKey{}, fmt.Errorf("key %q names no backend and no group: use NAMESPACE/NAME/BACKEND", at)
	}
	return ParseID(registry.ServiceOf(at), parts[2])
}

// ParseID reads the ID of an OverrideKey of a service.
func ParseID(service vip.ServiceKey, id string) (vip.OverrideKey, error) {
	if vip.CheckLabel(id) == nil {
		return vip.OverrideKey{BackendKey: vip.BackendKey{Service: service}, Group: id}, nil
	}
	addr, port, err := vip.ParseBackendID(id)
	return vip.OverrideKey{BackendKey: vip.BackendKey{Service: service, Address: addr, Port: port}}, err
}
