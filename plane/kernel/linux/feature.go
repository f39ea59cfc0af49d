// Package linux has the running kernel's version, and lists what ironvip can use of a kernel and older
// kernels don't have. Nothing in the list is needed: without a feature, ironvip does something else, or less. One list serves docs/dataplanes.md, `ironvip doctor` and the skips of tests,
// so that they can't differ.
package linux

import "fmt"

// Feature is an ability of the kernel. Distributions may have it in an older kernel, so only a trial tells whether it is there.
type Feature struct {
	Name         string
	Major, Minor int    // of the first Linux with it
	Use          string // what uses it
	Without      string // the consequence
}

// The features.
var (
	ConntrackFilter = Feature{"filtered dumps of connection tracking", 5, 8, "`ipvs` and `nft`: UDP clients of removed backends",
		"each search for them reads the whole table of connections"}
	SkLookup = Feature{"BPF programs of type sk_lookup", 5, 9, "`proxy` with `sk_lookup = \"auto\"`",
		"each frontend has a listener"}
	OwnedTables = Feature{"nftables tables with an owner", 5, 12, "`ipvs` (masquerading) and `nft`: open connections after `nft flush ruleset`",
		"open connections whose packets arrive before the agent's repair hang or are reset"}
	NetnsCookie = Feature{"`SO_NETNS_COOKIE`", 5, 14, "sockets that outlive the agent; `dataplane.connect`",
		"a kept socket of another network namespace isn't noticed, and nothing is balanced at connect()"}
	Egress = Feature{"nftables egress hook", 5, 16, "`announce.mode = \"l2\"`",
		"an announcer that hangs can go on announcing: only the process itself ends its announcements in time"}
	RunEstimation = Feature{"`net.ipv4.vs.run_estimation`", 5, 16, "`ipvs`, if you set it to 0",
		"the kernel's work for the counters of IPVS can't be switched off"}
)

// All lists the features, the oldest first.
func All() []Feature {
	return []Feature{ConntrackFilter, SkLookup, OwnedTables, NetnsCookie, Egress, RunEstimation}
}

// In reports whether a kernel of that release, such as "6.1.0-56-cloud-amd64", must have the feature.
func (f Feature) In(release string) bool { return !ParseVersion(release).Before(f.Major, f.Minor) }

// First is the first version of Linux with the feature, as "5.16".
func (f Feature) First() string { return fmt.Sprintf("%d.%d", f.Major, f.Minor) }
