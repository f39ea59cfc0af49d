package v1

import "github.com/ironvip/ironvip/vip"

// ProblemType is the content type of a ProblemDocument.
const ProblemType = "application/problem+json"

// ProblemDocument is the body of every response that is not a success: an RFC 9457 problem.
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

// Problem is one error in an input, a service, a source or the dataplane.
type Problem = vip.Problem

// The codes of problem documents. Errors within them have the codes of package vip ("invalid",
// "unknown_key", "address_taken").
const (
	CodeInvalidRequest     = "invalid_request"      // 400: not JSON, a bad parameter, cursor or header
	CodeInvalidService     = "invalid_service"      // 422: an invalid service, backend or state; see errors
	CodeInvalidConfig      = "invalid_config"       // 422: an invalid configuration; see errors
	CodeInvalidToken       = "invalid_token"        // 422: an invalid token to create; see errors
	CodeInvalidReservation = "invalid_reservation"  // 422: an address that can't be reserved; see errors
	CodeNotFound           = "not_found"            // 404: object not found
	CodeNoRoute            = "no_route"             // 404: path not found
	CodeMethodNotAllowed   = "method_not_allowed"   // 405
	CodeReadOnlySource     = "read_only_source"     // 409: another source owns the name
	CodeConflict           = "conflict"             // 409: another host of the fleet wrote the service first
	CodeAddressTaken       = "address_taken"        // 409: the address to reserve is in use or reserved, or the one to release is not reserved
	CodePoolFull           = "pool_full"            // 409: the pool has no free address to reserve
	CodeLastBackend        = "last_backend"         // 409: the change would leave a port without a usable backend; force=true permits it
	CodeSwitchRefused      = "switch_refused"       // 409: the host can't move to the dataplane, or only with services refused; force=true permits that
	CodeAmbiguousBackend   = "ambiguous_backend"    // 409: several backends have the address; the hint lists their ids
	CodeDeletedMeanwhile   = "deleted_meanwhile"    // 409: another client reverted the write before the response
	CodePreconditionFailed = "precondition_failed"  // 412: If-Match or If-None-Match is not met
	CodeBodyTooLarge       = "body_too_large"       // 413
	CodeUnsupportedMedia   = "unsupported_media"    // 415: a body with a content type other than JSON
	CodeUnauthorized       = "unauthorized"         // 401: no token, or one that is unknown, revoked or expired
	CodeForbidden          = "forbidden"            // 403: the caller's role doesn't allow it
	CodeForbiddenOrigin    = "forbidden_origin"     // 403: a Host or Origin that isn't this agent's
	CodeRequestTimeout     = "request_timeout"      // 408: the body came too slowly
	CodeStoreUnavailable   = "store_unavailable"    // 503: the durable store refused the write, or has not been read since the agent started; nothing changed
	CodeStoreFull          = "store_full"           // 507: the same, because the disk is full
	CodeNotReady           = "not_ready"            // 503: before the first full reconcile
	CodeApplyFailed        = "apply_failed"         // 502: stored, but the dataplane refused it
	CodeApplyTimeout       = "apply_timeout"        // 504: stored, but not in the dataplane within the time limit
	CodeDataplane          = "dataplane_unreadable" // 503: the dataplane could not be read
	CodeOverloaded         = "overloaded"           // 503: too many connections or streams
	CodeTooManyRequests    = "too_many_requests"    // 429: this client sends too many requests
	CodeUnavailable        = "unavailable"          // 503: this host has no answer, or not now
	CodeInternal           = "internal"             // 500: an error in the agent; the log has the request id
)
