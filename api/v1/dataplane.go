package v1

import "time"

// Dataplane reports which dataplane runs and whether it matches the desired state.
type Dataplane struct {
	Mode    string `json:"mode" doc:"\"ipvs\", \"nft\" or \"proxy\", the one in userspace"`
	Reason  string `json:"reason" doc:"why this one was chosen"`
	Level   string `json:"level" enum:"ok,warn,fail"`
	Summary string `json:"summary" doc:"\"in sync: 47 services, 212 backends\""`
	InSync  bool   `json:"in_sync" doc:"every frontend is applied at its newest revision"`
	Ready   bool   `json:"ready" doc:"the first full reconcile is done"`

	DesiredRevision uint64     `json:"desired_revision"`
	AppliedRevision uint64     `json:"applied_revision" doc:"all changes up to here are applied or have a problem"`
	Frontends       int        `json:"frontends"`
	Backends        int        `json:"backends"`
	Pending         int        `json:"pending" doc:"frontends not yet applied at their newest revision"`
	Failed          int        `json:"failed" doc:"frontends that the dataplane refused"`
	Contested       int        `json:"contested" doc:"frontends that another program keeps changing"`
	Repairs         uint64     `json:"drift_repairs" doc:"since the agent started"`
	LastResync      *time.Time `json:"last_resync,omitempty"`

	Problems []Problem `json:"problems"`
	Findings []Finding `json:"findings" doc:"missing requirements of the dataplane on this host, with the fix"`

	Switching string `json:"switching,omitempty" doc:"the dataplane to which the host is being moved; absent: none. If it goes without a change of mode, the switch has failed"`

	Leaving []LeavingDataplane `json:"leaving" doc:"the dataplanes that this one has replaced and that still have connections"`
}

// The fates of open connections when a host moves to another dataplane.
const (
	SwitchContinues = "continue" // until they end, or for hard_stop_after at most
	SwitchMoves     = "move"     // to the new dataplane, with the client's next datagram
	SwitchEnds      = "end"      // at once
)

// SwitchPlan is what a switch to another dataplane does.
type SwitchPlan struct {
	From          string              `json:"from"`
	To            string              `json:"to"`
	Changes       bool                `json:"changes" doc:"false: the host runs this dataplane"`
	HardStopAfter uint64              `json:"hard_stop_after_seconds,omitempty" doc:"how long connections may continue"`
	Connections   []SwitchConnections `json:"connections" doc:"of this dataplane that are open now, without those that a dataplane that leaves still has"`
	Counted       bool                `json:"counted" doc:"false: connections are not counted: the dataplane does not change, or the agent has not finished its start"`
	Refused       []Problem           `json:"refused" doc:"what services use and the new dataplane does not support"`
	Problems      []Problem           `json:"problems" doc:"why the switch is not possible; or, if the host runs this dataplane, why that does not last"`
}

// SwitchConnections are open connections of one protocol and state.
type SwitchConnections struct {
	Protocol    string `json:"protocol"`
	State       string `json:"state" doc:"as the dataplane names it, such as ESTABLISHED"`
	Connections int    `json:"connections"`
	Then        string `json:"then" enum:"continue,move,end" doc:"continue: until they end, or for hard_stop_after_seconds; move: with the client's next datagram; end: at once"`
}

// LeavingDataplane is a dataplane that another one has replaced. It takes no new connections.
type LeavingDataplane struct {
	Mode        string     `json:"mode" doc:"\"ipvs\", \"nft\" or \"proxy\""`
	Connections int        `json:"connections" doc:"that are open"`
	Until       *time.Time `json:"until,omitempty" doc:"when the last ones are ended"`
	Problem     string     `json:"problem,omitempty" doc:"why it can't be ended; this is tried again"`
}

// Finding is a requirement of a dataplane that this host does not meet.
type Finding struct {
	Level   string `json:"level" enum:"ok,warn,fail"`
	Name    string `json:"name" doc:"\"net.ipv4.vs.conntrack\""`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty" doc:"a command, or what to change"`
}

// Frontend is one listener with its backends, in the desired and the applied state.
type Frontend struct {
	Address    string     `json:"address" doc:"\"192.0.2.10:80\", or \"192.0.2.10:10000-10099\" of a range of ports"`
	Protocol   string     `json:"protocol"`
	Audience   string     `json:"audience,omitempty" enum:"internal" doc:"absent: all clients that no other frontend of the address serves"`
	Kind       string     `json:"kind" enum:"vip,node-port,real-server"`
	Service    string     `json:"service"`
	Port       string     `json:"port" doc:"the service port's name"`
	Scheduler  string     `json:"scheduler"`
	Flags      []string   `json:"scheduler_flags,omitempty"`
	Forward    string     `json:"forward"`
	Affinity   string     `json:"affinity,omitempty" doc:"how long a client keeps its backend"`
	Masquerade string     `json:"masquerade" doc:"\"own\": of this host's own connections and a backend's to itself only"`
	Sources    []string   `json:"source_ranges,omitempty" doc:"clients that may reach it; absent: all"`
	Proxy      string     `json:"proxy_protocol,omitempty" doc:"the version of the header that backends receive; absent: none"`
	ProxyFrom  []string   `json:"accept_proxy_from,omitempty" doc:"balancers in front that send a PROXY header; absent: none"`
	Backends   []Endpoint `json:"backends"`

	Revision        uint64     `json:"revision" doc:"desired"`
	Applied         bool       `json:"applied" doc:"the dataplane has this revision"`
	AppliedRevision uint64     `json:"applied_revision,omitempty"`
	AppliedAt       *time.Time `json:"applied_at,omitempty"`
	Problem         *Problem   `json:"problem,omitempty"`
	Warning         *Problem   `json:"warning,omitempty" doc:"another program keeps changing it, since when and how often"`
}

// Endpoint is one backend of a frontend.
type Endpoint struct {
	Address string `json:"address" doc:"\"10.1.0.11:8080\"; without a port, the client's destination port"`
	Weight  uint32 `json:"weight"`

	MaxConnections uint32 `json:"max_connections,omitempty"`

	LeavingAt *time.Time `json:"leaving_at,omitempty"`
}

// FrontendList is a page of frontends, ordered by address, port and protocol.
type FrontendList struct {
	Items    []Frontend `json:"items"`
	Next     string     `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Revision uint64     `json:"revision"`
}

// DataplaneDiff compares the dataplane's current state, read from it, with the desired state.
type DataplaneDiff struct {
	InSync bool        `json:"in_sync"`
	Items  []DiffEntry `json:"items"`
	Next   string      `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// The actions that would repair a difference or apply a plan.
const (
	ActionAdd    = "add"
	ActionChange = "change"
	ActionRemove = "remove"
	ActionRepair = "repair"
)

// DiffEntry is one frontend that differs between the dataplane and the desired state.
type DiffEntry struct {
	Frontend string   `json:"frontend" doc:"\"192.0.2.10:80/tcp\""`
	Service  string   `json:"service,omitempty"`
	Action   string   `json:"action" enum:"add,change,remove,repair" doc:"the repair"`
	Details  []string `json:"details" doc:"each difference"`
}

// RepairResult is the response to a repair.
type RepairResult struct {
	Repaired int         `json:"repaired" doc:"frontends that were repaired"`
	Items    []DiffEntry `json:"items" doc:"what was repaired"`
	Problems []Problem   `json:"problems" doc:"of the frontends that were not"`
}

// Connection is a line of the list of connections.
type Connection struct {
	Service  string `json:"service,omitempty"`
	Frontend string `json:"frontend,omitempty" doc:"what the client connected to: \"192.0.2.10:80/tcp\""`
	Client   string `json:"client,omitempty" doc:"\"198.51.100.7:40312\"; in the state AFFINITY only the address"`
	Backend  string `json:"backend,omitempty" doc:"\"10.1.0.11:8080\""`
	State    string `json:"state,omitempty" doc:"as the dataplane names it, such as ESTABLISHED; UDP: a client of a UDP service; AFFINITY: the record of where a client's next connection goes"`
	Expires  uint64 `json:"expires_seconds,omitempty" doc:"when it ends if nothing more is sent; absent: unknown"`

	Problem *Problem `json:"problem,omitempty" doc:"why the list ends here, in a last line without other fields"`
}
