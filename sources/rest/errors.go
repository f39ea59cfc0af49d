package rest

import (
	"fmt"

	"github.com/ironvip/ironvip/vip"
)

// OwnedError means that the service's name belongs to another source.
type OwnedError struct {
	Service vip.ServiceKey
	Source  string // the owner; "" for one that has not synced yet
	Origin  string // the place that the owner has the service from, if known
}

// ownedBy returns the error for the name of a row in effect of another source.
func ownedBy(row vip.Service) *OwnedError {
	return &OwnedError{Service: row.Key, Source: row.Source, Origin: row.Origin}
}

func (e *OwnedError) Error() string { return fmt.Sprintf("service %q %s", e.Service, e.Why()) }

// Why returns the error without the service's name.
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
