//go:build system && !vm

package announce

// dataplane is the mode of the hosts: this kernel may have no IPVS.
const dataplane = "proxy"
