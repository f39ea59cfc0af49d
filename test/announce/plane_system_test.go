//go:build system && !vm

package announce

// dataplane is the mode of the hosts: this kernel may have no IPVS.
const dataplane = "proxy"

// Of the benchmarks.
const (
	perSecond     = 1000 // requests
	benchPatience = requestTime
)
