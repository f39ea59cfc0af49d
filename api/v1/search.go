package v1

// The kinds of what a search finds.
const (
	KindService = "service"
	KindVIP     = "vip"
	KindBackend = "backend"
	KindNode    = "node"
	KindPool    = "pool"
	KindName    = "dns_name"
)

// SearchMatch is an object that a search has found.
type SearchMatch struct {
	Kind    string `json:"kind" enum:"service,vip,backend,node,pool,dns_name"`
	Name    string `json:"name" doc:"the name, the address, or the id of a backend"`
	Service string `json:"service,omitempty" doc:"the service itself, or the one that has the backend, the DNS name, or the VIP: of several, the first"`
	State   string `json:"state,omitempty" doc:"of a service, a VIP, a node or a DNS name, as in its list; of a backend its state, or its health if it is ready"`
	Detail  string `json:"detail,omitempty" doc:"for people: addresses and ports, the pool, the node"`
}

// SearchResult is what a search has found.
type SearchResult struct {
	Matches []SearchMatch `json:"matches" doc:"the best match first"`
	Missing []string      `json:"missing,omitempty" doc:"kinds that could not be read"`
}
