package v1

import "net/url"

// The paths of the API. The functions below build those that contain a name.
const (
	PathServices           = "/v1/services"
	PathApply              = "/v1/services:apply"
	PathWatchServices      = "/v1/services:watch"
	PathOverrides          = "/v1/overrides"
	PathVIPs               = "/v1/vips"
	PathTokens             = "/v1/tokens"
	PathPools              = "/v1/pools"
	PathSources            = "/v1/sources"
	PathNodes              = "/v1/nodes"
	PathExport             = "/v1/export"
	PathDataplane          = "/v1/dataplane"
	PathDataplaneFrontends = "/v1/dataplane/frontends"
	PathDataplaneDiff      = "/v1/dataplane/diff"
	PathDataplaneRepair    = "/v1/dataplane/repair"
	PathDataplaneSwitch    = "/v1/dataplane/switch"
	PathConnections        = "/v1/dataplane/connections"
	PathConfigValidate     = "/v1/config/validate"
	PathConfigPlan         = "/v1/config/plan"
	PathReload             = "/v1/reload"
	PathEvents             = "/v1/events"
	PathDebugTables        = "/v1/debug/tables"
	PathStats              = "/v1/stats"
	PathTop                = "/v1/top"
	PathSearch             = "/v1/search"
	PathStatus             = "/v1/status"
	PathWhoami             = "/v1/whoami"
	PathSession            = "/ui/session"
	PathHealthz            = "/healthz"
	PathReadyz             = "/readyz"
	PathMetrics            = "/metrics"
	PathOpenAPI            = "/openapi.json"
)

// The default addresses of an agent.
const (
	DefaultSocket = "/run/ironvip/ironvip.sock"
	DefaultListen = "127.0.0.1:7480"
)

// ServicePath is the path of one service: GET, PUT, PATCH, DELETE.
func ServicePath(namespace, name string) string {
	return PathServices + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// ExplainPath is the path of a service's explanation: GET.
func ExplainPath(namespace, name string) string { return ServicePath(namespace, name) + "/explain" }

// ServiceStatsPath is the path of a service's traffic: GET.
func ServiceStatsPath(namespace, name string) string { return ServicePath(namespace, name) + "/stats" }

// DebugTablePath is the path of one table of the pipeline: GET.
func DebugTablePath(name string) string { return PathDebugTables + "/" + url.PathEscape(name) }

// BackendsPath is the path of a service's backends: GET.
func BackendsPath(namespace, name string) string { return ServicePath(namespace, name) + "/backends" }

// BackendPath is the path of one backend: GET, PUT, DELETE. The id is "address:port", or only the
// address for a backend that uses the service's target ports.
func BackendPath(namespace, name, id string) string {
	return BackendsPath(namespace, name) + "/" + url.PathEscape(id)
}

// HeartbeatPath is the path for the heartbeats of a backend with a TTL: PUT.
func HeartbeatPath(namespace, name, id string) string {
	return BackendPath(namespace, name, id) + "/heartbeat"
}

// BackendStatePath is the path for an operator's override of a backend's state: PUT.
func BackendStatePath(namespace, name, id string) string {
	return BackendPath(namespace, name, id) + "/state"
}

// GroupWeightPath is the path for an operator's override of a group's weight: PUT.
func GroupWeightPath(namespace, name, group string) string {
	return ServicePath(namespace, name) + "/groups/" + url.PathEscape(group) + "/weight"
}

// OverridePath is the path of an operator's override: DELETE.
func OverridePath(namespace, name, id string) string {
	return PathOverrides + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name) + "/" + url.PathEscape(id)
}

// BackendConnectionsPath is the path of the number of a backend's connections: GET.
func BackendConnectionsPath(namespace, name, id string) string {
	return BackendPath(namespace, name, id) + "/connections"
}

// VIPPath is the path of one address's lease: GET, and DELETE of its reservation.
func VIPPath(address string) string { return PathVIPs + "/" + url.PathEscape(address) }

// TokenPath is the path of one token: PUT, DELETE.
func TokenPath(name string) string { return PathTokens + "/" + url.PathEscape(name) }

// ResyncPath is the path that makes a source read everything again: POST.
func ResyncPath(source string) string {
	return PathSources + "/" + url.PathEscape(source) + "/resync"
}
