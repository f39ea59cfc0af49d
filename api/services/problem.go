package services

import (
	"errors"
	"net/http"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

// goneMeanwhile returns the problem of a write that another client reverted before the response. A
// 404 would mean that the object never existed. Heir is the source that has the service's name now; "":
// none has.
func goneMeanwhile(what, heir string) *server.Problem {
	detail, hint := what+" was written, but another client deleted it", "write it again if needed"
	if heir != "" {
		detail += `; the service of source "` + heir + `" has its name now`
		hint = ownedHint(&rest.OwnedError{Source: heir})
	}
	return server.Refuse(http.StatusConflict, v1.CodeDeletedMeanwhile, detail, hint)
}

// writeFailed returns the problem of a write of a service or backend, or of an override, that was refused.
func writeFailed(key vip.BackendKey, err error) error {
	if own, ok := errors.AsType[*server.Problem](err); ok {
		return own
	}
	if owned, ok := errors.AsType[*rest.OwnedError](err); ok {
		return server.Refuse(http.StatusConflict, v1.CodeReadOnlySource, owned.Error(), ownedHint(owned))
	}
	if last, ok := errors.AsType[*overrides.LastBackendError](err); ok {
		return server.Refuse(http.StatusConflict, v1.CodeLastBackend, last.Error()+": new connections would be refused",
			"bring another backend back first, or permit it with ?force=true")
	}
	if refused, ok := errors.AsType[*registry.InvalidError](err); ok {
		return request.Invalid(refused.Problems)
	}
	switch {
	case errors.Is(err, registry.ErrNoService):
		return request.NoService(key.Service)
	case errors.Is(err, registry.ErrNoBackend):
		return request.NoBackend(key)
	case errors.Is(err, registry.ErrNotRunning):
		return server.Refuse(http.StatusServiceUnavailable, v1.CodeNotReady, "agent starting: it accepts no registrations yet", "try again in a moment").RetryAfter(1)
	}
	return request.WriteFailed(err)
}

// ownedHint returns the hint for a name that another source owns.
func ownedHint(o *rest.OwnedError) string {
	hint := "change it in source \"" + o.Source + "\""
	if o.Source == "" {
		hint = "see ironvip source list"
	}
	if o.Origin != "" {
		hint += " (" + o.Origin + ")"
	}
	return hint + ", or use another name"
}
