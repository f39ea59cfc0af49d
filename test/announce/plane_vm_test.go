//go:build vm

package announce

// dataplane is the mode of the hosts.
const dataplane = "ipvs"
