// Package api serves the REST API: what the tables hold, in the JSON of
// api/v1, and the writes that go into sources/rest.
//
// In come requests on a unix socket or TCP; out go answers read from the
// tables at that moment, problem documents (RFC 9457) where something is
// wrong, metrics, an event stream and the OpenAPI document. A write is
// validated, stored durably, and answered with its revision; a caller may wait
// until the dataplane has it and is told why it hasn't. The package owns
// listeners and the requests on them, writes no table itself, and decides
// nothing about services.
package api
