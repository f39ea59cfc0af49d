package vip

import "time"

// Health is what was observed of a backend. It is separate from State, which is configured. The
// zero Health means "not stated".
type Health uint8

// Unknown has a health check without a result yet. Healthy has evidence: a probe, a source that
// checks the backend itself (Consul, Kubernetes, heartbeats), or successful connections. Unhealthy
// fails its checks and gets no new connections. Unchecked has no health check and no other
// evidence. Ejected failed the connections of clients through the userspace proxy, which skips it
// for a while.
const (
	Unknown Health = iota + 1
	Healthy
	Unhealthy
	Unchecked
	Ejected
)

// String returns "unknown", "healthy", "unhealthy", "unchecked" or "ejected", or "" if not stated.
func (h Health) String() string { return wordOf(h, healths) }

// MarshalText writes String.
func (h Health) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (h *Health) UnmarshalText(b []byte) error { return readWord(h, b, healths) }

// CheckType is how a health check probes a backend. The zero CheckType means "not stated".
type CheckType uint8

// CheckTCP opens a connection. CheckHTTP and CheckHTTPS send a request and expect a status.
// CheckGRPC calls the standard health service. CheckUDP sends a datagram and expects an answer.
// CheckExec runs a command. CheckNone sends nothing.
const (
	CheckTCP CheckType = iota + 1
	CheckHTTP
	CheckHTTPS
	CheckGRPC
	CheckUDP
	CheckExec
	CheckNone
)

// String returns "tcp", "http", "https", "grpc", "udp", "exec" or "none", or "" if not stated.
func (t CheckType) String() string { return wordOf(t, checkTypes) }

// MarshalText writes String.
func (t CheckType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (t *CheckType) UnmarshalText(b []byte) error { return readWord(t, b, checkTypes) }

// BackendHealth is what the health checks of this host found out about one backend: a row of the
// health table. It has no row for a backend without a check.
type BackendHealth struct {
	Backend BackendKey
	Checks  []CheckResult // sorted by Ports; at least one
}

// CheckResult is the state of one check of a backend. It changes only when Health or Reason does.
type CheckResult struct {
	Ports  Names // the names of the service ports that it decides for; "": all
	Type   CheckType
	Port   uint16 // the probed port
	Health Health // Unknown, Healthy or Unhealthy
	Since  Instant
	Reason string // why it is Unhealthy, or Held: "connect: connection refused"
	// HeldUntil is not zero if the check fails, and Health stays Healthy until then because all
	// checks of this host failed at the same time, at Since.
	HeldUntil Instant
}

// Held reports whether the check fails and its traffic is held.
func (c *CheckResult) Held() bool { return !c.HeldUntil.IsZero() }

// Unhealthy reports whether a check of the backend that decides for the service port has failed. An
// empty port stands for all ports: a check of any port counts.
func (h *BackendHealth) Unhealthy(port string) bool {
	for i := range h.Checks {
		c := &h.Checks[i]
		if c.Health == Unhealthy && (c.Ports == "" || port == "" || c.Ports.Has(port)) {
			return true
		}
	}
	return false
}

// ByPort reports whether the backend is unhealthy on some of its ports only.
func (h *BackendHealth) ByPort() bool {
	for i := range h.Checks {
		if h.Checks[i].Ports != "" && h.Checks[i].Health == Unhealthy {
			return true
		}
	}
	return false
}

// Defaults and limits of health checks, as documented in docs/health.md.
const (
	DefaultCheckInterval     = 2 * time.Second
	DefaultCheckFastInterval = 500 * time.Millisecond // while the state is in doubt
	DefaultCheckTimeout      = time.Second
	DefaultRise              = 2
	DefaultFall              = 3

	DefaultCheckPath   = "/"
	DefaultCheckStatus = "200-399"

	MinCheckInterval = 100 * time.Millisecond
	MaxCheckInterval = time.Hour
	MaxCheckTimeout  = time.Minute
	MaxRiseFall      = 255
)

// HealthCheck is how this host probes the backends of a service. It is comparable: equal checks of
// one address and port are one probe.
type HealthCheck struct {
	Type CheckType
	Port uint16 // 0: the backend's port; see health for which

	Interval     time.Duration // between probes; up to 20% less by chance
	FastInterval time.Duration // while the state is in doubt
	Timeout      time.Duration // of one probe
	Rise         uint8         // successes in a row that make an unhealthy backend healthy
	Fall         uint8         // failures in a row that make a healthy backend unhealthy

	Method     string // http and https: GET, HEAD or OPTIONS
	Path       string // http and https: the path with the query
	Host       string // http and https: the Host header; https and grpc: the name in the certificate; "": the address
	Status     string // http and https: the expected codes: "200", "200-299,404"
	Body       string // http and https: text that the first 64 KiB of the answer contain; "": any
	TLS        bool   // grpc: with TLS
	SkipVerify bool   // https and grpc: accept any certificate
	Service    string // grpc: the service asked for; "": the server
	Send       string // udp, and tcp if not empty: what is sent
	Expect     string // udp and tcp: what the answer begins with; "": any answer, and for tcp none
	Command    string // exec: the program and its arguments, separated by NUL
}
