package offline

import (
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/fleet/membership"
)

// IdentityChange is the result of "node new-id".
type IdentityChange struct {
	Old string `json:"old,omitempty"` // "" if the state file had none that could be read
	New string `json:"new"`
}

// NewIdentity gives the host of a stopped agent a new host id. It needs no Consul. Its errors may
// be an Error.
func NewIdentity(req StoreRequest) (change IdentityChange, err error) {
	_, db, err := openState(req)
	if err != nil {
		return change, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	change.Old, change.New, err = membership.NewIdentity(db)
	if err != nil {
		return change, fmt.Errorf("write the new host id: %w", err)
	}
	return change, nil
}
