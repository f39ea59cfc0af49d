// Package api serves the REST API: the content of the tables, as the JSON of api/v1, and the writes
// to sources/rest.
//
// Its input is requests on a unix socket or TCP. Its output is responses read from the current
// tables, problem documents (RFC 9457) for errors, metrics, an event stream and the OpenAPI
// document. A write is validated, stored durably, and answered with its revision. A caller may wait
// until the dataplane has applied the write; if that fails, the response gives the reason. The
// package owns the listeners and their requests. It writes no table itself and makes no decisions
// about services.
package api
