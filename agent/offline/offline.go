// Package offline has the commands that work without a running agent: they save, compare and restore what
// the store has, give the host a new id, and remove what an agent and its announcer left in the kernel.
//
// Its inputs are the configuration, the stores that it names, and the kernel. While a command has the state
// file open, no agent of this host can start. It forwards nothing and assigns nothing.
package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
)

// Cause classifies why an operation without an agent failed.
type Cause int

const (
	CauseOther      Cause = iota
	CauseRunning          // an agent runs, and it must be stopped first
	CausePermission       // this user may not do it
)

// Error is an error of an operation that works without an agent.
type Error struct {
	Err   error
	Cause Cause
	Hint  string // what to do about it, or ""
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// StoreRequest names a store to read or write without an agent.
type StoreRequest struct {
	Config   string // a file, or a directory that holds ironvip.toml
	StateDir string // "": node.state_dir of the configuration
	Version  string // of this binary
}

// openState opens the state file of a stopped agent.
func openState(req StoreRequest) (*configs.Config, *store.DB, error) {
	cfg, problems := configs.Load(req.Config)
	if cfg == nil {
		return nil, nil, configs.Refusal("the configuration, which names the store, can't be used", problems)
	}
	cfg.Node.StateDir = cmp.Or(req.StateDir, cfg.Node.StateDir)
	db, err := stores.OpenState(cfg)
	switch {
	case errors.Is(err, store.ErrLocked):
		return nil, nil, &Error{fmt.Errorf("an agent runs with the state directory %s", cfg.Node.StateDir), CauseRunning,
			"stop it first: systemctl stop ironvip; the kernel goes on forwarding"}
	case errors.Is(err, fs.ErrPermission):
		return nil, nil, &Error{err, CausePermission, "run this as root, or as the user ironvip"}
	}
	return cfg, db, err
}

// idleOptions are those of the stores of a stopped agent.
func idleOptions() stores.Options {
	return stores.Options{Clock: table.NewClock(time.Now()), Log: slog.New(slog.DiscardHandler)}
}

// openStores opens the stores that a configuration names. The caller closes them.
func openStores(ctx context.Context, req StoreRequest) (*stores.Stores, error) {
	cfg, db, err := openState(req)
	if err != nil {
		return nil, err
	}
	s, err := stores.Open(cfg, db, idleOptions())
	if err != nil {
		return nil, err
	}
	if err := s.InTouch(ctx); err != nil {
		_ = s.Close()
		return nil, &Error{fmt.Errorf("the store %s: %w", stores.PlaceOf(cfg), err), CauseOther,
			"is " + cfg.FleetServers() + " there, and does it accept this host? " + s.Tree.Engine().Look + "; ironvip config validate"}
	}
	return s, nil
}

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
