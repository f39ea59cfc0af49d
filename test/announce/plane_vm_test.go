//go:build vm

package announce

// dataplane is the mode of the hosts.
const dataplane = "ipvs"

// Of the benchmarks. The emulated processor has no room for more, and is busy when processes start.
const (
	perSecond     = 100 // requests
	benchPatience = patience
)
