package rest

import (
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/vip"
)

// What a write can be refused for. Test with errors.Is.
var (
	// ErrStore says that the store refused the write: nothing has changed. The
	// cause is wrapped; errors.Is finds syscall.ENOSPC for a full disk.
	ErrStore = errors.New("not stored, nothing changed")
	// ErrNoService says that no such service exists.
	ErrNoService = errors.New("no such service")
	// ErrNoBackend says that the service has no such backend.
	ErrNoBackend = errors.New("no such backend")
	// ErrNotRunning says that the source has not started yet.
	ErrNotRunning = errors.New("the source is starting")
)

// OwnedError says that another source owns the service's name.
type OwnedError struct {
	Service vip.ServiceKey
	Source  string // the owner; "" for one that has not told its services yet
	Origin  string // where the owner has it from, if known
}

func (e *OwnedError) Error() string {
	at := ""
	if e.Source == "" {
		return fmt.Sprintf("service %q belongs to another source, which is still starting", e.Service)
	}
	if e.Origin != "" {
		at = " (" + e.Origin + ")"
	}
	return fmt.Sprintf("service %q belongs to source %q%s", e.Service, e.Source, at)
}

// InvalidError carries everything that is wrong with what was to be written.
type InvalidError struct{ Problems []vip.Problem }

func (e *InvalidError) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].Error()
	}
	return fmt.Sprintf("%s (and %d more problems)", e.Problems[0].Error(), len(e.Problems)-1)
}
