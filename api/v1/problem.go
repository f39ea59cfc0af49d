package v1

import "fmt"

// ProblemType is the content type of an answer that is a ProblemDocument.
const ProblemType = "application/problem+json"

// ProblemDocument is every answer that is not a success: an RFC 9457 problem.
type ProblemDocument struct {
	Type      string    `json:"type" doc:"a URI for the kind of problem; \"urn:ironvip:problem:\" and the code"`
	Title     string    `json:"title" doc:"the kind of problem, for people"`
	Status    int       `json:"status" doc:"the HTTP status"`
	Detail    string    `json:"detail,omitempty" doc:"the error"`
	Instance  string    `json:"instance,omitempty" doc:"the path of the request"`
	Code      string    `json:"code" doc:"stable and machine-readable: \"read_only_source\""`
	Hint      string    `json:"hint,omitempty" doc:"what to do about it"`
	RequestID string    `json:"request_id,omitempty" doc:"the request in the agent's log"`
	Errors    []Problem `json:"errors,omitempty" doc:"every error, with its location"`
}

// Problem is one thing wrong with a piece of input, a service, a source or the
// dataplane.
type Problem struct {
	Code    string `json:"code" doc:"stable and machine-readable: \"unknown_key\""`
	Place   string `json:"place,omitempty" doc:"file:line, or the source's name for the place"`
	Service string `json:"service,omitempty" doc:"\"name\" or \"namespace/name\""`
	Field   string `json:"field,omitempty" doc:"path in the body or the service: \"ports[0].port\""`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty" doc:"what to do about it"`
}

// String returns "place: service "x": field: message", leaving out what is
// empty; the hint is left to the printer.
func (p Problem) String() string {
	s := p.Message
	if p.Field != "" {
		s = p.Field + ": " + s
	}
	if p.Service != "" {
		s = fmt.Sprintf("service %q: %s", p.Service, s)
	}
	if p.Place != "" {
		s = p.Place + ": " + s
	}
	return s
}

// The codes of problem documents. Errors within them carry the codes of the
// vip package ("invalid", "unknown_key", "address_taken").
const (
	CodeInvalidRequest     = "invalid_request"      // 400: not JSON, a bad parameter, cursor or header
	CodeInvalidService     = "invalid_service"      // 422: a service that can't be accepted; errors say why
	CodeInvalidConfig      = "invalid_config"       // 422: a configuration that can't be loaded; errors say why
	CodeNotFound           = "not_found"            // 404: no such object
	CodeNoRoute            = "no_route"             // 404: no such path
	CodeMethodNotAllowed   = "method_not_allowed"   // 405
	CodeReadOnlySource     = "read_only_source"     // 409: another source owns the name
	CodeConflict           = "conflict"             // 409: another host of the fleet wrote the service at the same time, and first
	CodeDeletedMeanwhile   = "deleted_meanwhile"    // 409: the write was done, and undone by somebody else before the answer
	CodePreconditionFailed = "precondition_failed"  // 412: If-Match or If-None-Match doesn't hold
	CodeBodyTooLarge       = "body_too_large"       // 413
	CodeUnsupportedMedia   = "unsupported_media"    // 415: a body that says it isn't JSON
	CodeForbiddenOrigin    = "forbidden_origin"     // 403: a Host or Origin that isn't this agent's
	CodeRequestTimeout     = "request_timeout"      // 408: the body came too slowly
	CodeStoreUnavailable   = "store_unavailable"    // 503: the durable store refused the write, or has not been read since the agent started; nothing changed
	CodeStoreFull          = "store_full"           // 507: the same, because the disk is full
	CodeNotReady           = "not_ready"            // 503: before the first full reconcile
	CodeApplyFailed        = "apply_failed"         // 502: stored, but the dataplane refused it
	CodeApplyTimeout       = "apply_timeout"        // 504: stored, but not in the dataplane in the time given
	CodeDataplane          = "dataplane_unreadable" // 503: the dataplane could not be read
	CodeReloadFailed       = "reload_failed"        // 500: the reload was tried and failed
	CodeUnavailable        = "unavailable"          // 503: this agent was built or started without it
	CodeInternal           = "internal"             // 500: a fault of the agent's own; the log has the request id
)
