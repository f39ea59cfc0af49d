package registry

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/vip"
)

// Reasons why a write is refused. Test for them with errors.Is.
var (
	// ErrStore means that the store did not confirm the write. The error is a *StoreError, which
	// states whether anything may have changed.
	ErrStore = errors.New("not stored")
	// ErrNoService means that the service does not exist.
	ErrNoService = errors.New("no such service")
	// ErrNoBackend means that the service has no such backend.
	ErrNoBackend = errors.New("no such backend")
	// ErrNotRunning means that the source has not started yet.
	ErrNotRunning = errors.New("the source is starting")
	// ErrTooLarge means that a batch or a value exceeds the store's limits.
	ErrTooLarge = errors.New("too large to be stored")
)

// StoreError is ErrStore with its cause. errors.Is finds syscall.ENOSPC for a full disk, and
// fleet.ErrUnavailable for an unreachable store of a fleet.
type StoreError struct {
	// Unknown means that the store did not answer. The write may have happened, and then takes
	// effect on every host when the store answers again. If Unknown is false, nothing has changed.
	Unknown bool
	Err     error
}

func (e *StoreError) Error() string {
	if e.Unknown {
		return fmt.Sprintf("write not confirmed, it may have happened or not: %v", e.Err)
	}
	return fmt.Sprintf("not stored, nothing changed: %v", e.Err)
}

// Is makes errors.Is match ErrStore.
func (e *StoreError) Is(target error) bool { return target == ErrStore }

func (e *StoreError) Unwrap() error { return e.Err }

// Partly returns the error of a later step of a write after an earlier step has changed something.
func Partly(err error) error {
	var store *StoreError
	if errors.As(err, &store) && !store.Unknown {
		return &StoreError{Unknown: true, Err: store.Err}
	}
	return err
}

// Unavailable returns the error of an unreachable store, with the reason.
func Unavailable(why string) error { return fmt.Errorf("%w: %s", fleet.ErrUnavailable, why) }

// OutdatedError names the keys of a batch that did not have the expected version.
type OutdatedError struct{ Keys []string }

func (e *OutdatedError) Error() string {
	return fmt.Sprintf("%s changed meanwhile", strings.Join(e.Keys, ", "))
}

// ConflictError means that another host changed a value of a service during this host's write.
// Nothing was written.
type ConflictError struct {
	Service vip.ServiceKey
	Node    string // the node that registered the current value; "" if unknown
	Removed bool   // no value is left
	// Unreadable means that this host can't read the stored value, and therefore does not overwrite
	// it. The store's problems give the reason.
	Unreadable bool
}

func (e *ConflictError) Error() string { return fmt.Sprintf("service %q %s", e.Service, e.Why()) }

// Why returns the error without the service's name.
func (e *ConflictError) Why() string {
	switch {
	case e.Unreadable:
		return "can't be read as it is stored, and is not overwritten"
	case e.Removed:
		return "was removed meanwhile through another node"
	case e.Node == "":
		return "was changed meanwhile through another node"
	}
	return fmt.Sprintf("was registered meanwhile through node %q", e.Node)
}

// InvalidError lists all problems with the value to write.
type InvalidError struct{ Problems []vip.Problem }

func (e *InvalidError) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].Error()
	}
	return fmt.Sprintf("%s (and %d more)", e.Problems[0].Error(), len(e.Problems)-1)
}
