package rest

import (
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/vip"
)

// What a write can be refused for. Test with errors.Is.
var (
	// ErrStore says that the store did not take the write. The error is a
	// *StoreError, which knows whether anything may have changed.
	ErrStore = errors.New("not stored")
	// ErrNoService says that no such service exists.
	ErrNoService = errors.New("no such service")
	// ErrNoBackend says that the service has no such backend.
	ErrNoBackend = errors.New("no such backend")
	// ErrNotRunning says that the source has not started yet.
	ErrNotRunning = errors.New("the source is starting")
)

// StoreError is ErrStore with its cause: errors.Is finds syscall.ENOSPC for a
// full disk, fleet.ErrUnavailable for a fleet's store that is away.
type StoreError struct {
	// Unknown says that the store did not answer: the write may have happened, and
	// then comes into force on every host once the store is there again. Otherwise
	// nothing has changed.
	Unknown bool
	Err     error
}

func (e *StoreError) Error() string {
	if e.Unknown {
		return fmt.Sprintf("not confirmed, it may be stored or not: %v", e.Err)
	}
	return fmt.Sprintf("not stored, nothing changed: %v", e.Err)
}

// Is makes it ErrStore.
func (e *StoreError) Is(target error) bool { return target == ErrStore }

func (e *StoreError) Unwrap() error { return e.Err }

// partly is the error of a later step of a write of which something has been done.
func partly(err error) error {
	var store *StoreError
	if errors.As(err, &store) && !store.Unknown {
		return &StoreError{Unknown: true, Err: store.Err}
	}
	return err
}

// OwnedError says that another source owns the service's name.
type OwnedError struct {
	Service vip.ServiceKey
	Source  string // the owner; "" for one that has not told its services yet
	Origin  string // where the owner has it from, if known
}

func (e *OwnedError) Error() string { return fmt.Sprintf("service %q %s", e.Service, e.Why()) }

// Why is the error for where the service is named already.
func (e *OwnedError) Why() string {
	if e.Source == "" {
		return "belongs to another source, which is still starting"
	}
	at := ""
	if e.Origin != "" {
		at = " (" + e.Origin + ")"
	}
	return fmt.Sprintf("belongs to source %q%s", e.Source, at)
}

// ConflictError says that another host changed a service while it was to be
// written here, and has won. Nothing of the write has happened.
type ConflictError struct {
	Service vip.ServiceKey
	Node    string // that registered what there is now; "" where unknown
	Removed bool   // there is nothing any more
	// Unreadable says that what is stored under the name can't be read by this
	// host, so that it is not overwritten. The source's problems say why.
	Unreadable bool
}

func (e *ConflictError) Error() string { return fmt.Sprintf("service %q %s", e.Service, e.Why()) }

// Why is the error for where the service is named already.
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

// InvalidError carries everything that is wrong with what was to be written.
type InvalidError struct{ Problems []vip.Problem }

func (e *InvalidError) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].Error()
	}
	return fmt.Sprintf("%s (and %d more problems)", e.Problems[0].Error(), len(e.Problems)-1)
}
