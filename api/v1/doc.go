// Package v1 is the shape of ironvip's REST API, version 1: the paths and the
// JSON of every request and answer.
//
// Servers and clients in Go share these types; other languages read the same
// from /openapi.json. The package holds no logic beyond building paths. What a
// caller sets (a service's spec, a backend's registration) is a type apart
// from what the agent reports (statuses, revisions). A service's spec is
// written exactly as in TOML, so it is the type of vip/spec and has no twin
// here.
//
// JSON of version 1 only ever grows: fields are added, never renamed, removed
// or given another meaning. Times are RFC 3339 in UTC, durations are Go's
// ("60s"), addresses and ports are strings as in a URL ("192.0.2.10:80",
// "[2001:db8::1]:80"). Revisions are integers that grow, also across restarts
// of the agent, and stay below 2^53.
package v1
