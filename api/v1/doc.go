// Package v1 defines ironvip's REST API, version 1: the paths and the JSON of every request and
// response.
//
// Servers and clients in Go share these types; other languages use /openapi.json. The package has
// no logic except for building paths. The settings of a caller (a service's spec, a backend's
// registration) have their own types, separate from the agent's reports (statuses, revisions). A
// service's spec is the type of vip/spec, because its JSON has the same fields as its TOML.
//
// The JSON of version 1 is only extended: fields are added, never renamed, removed or given another
// meaning. Times are RFC 3339 in UTC. Durations have Go's format ("60s"). Addresses with ports are
// strings as in a URL ("192.0.2.10:80", "[2001:db8::1]:80"). Revisions are integers below 2^53 that
// increase, also across restarts of the agent.
package v1
