// Package program tests the built binary from its user's view: commands, REST, configuration,
// signals, crashes. Each file covers one subject.
//
// The same scenarios run on the host with the userspace proxy (build tag system) and in the kernel
// VM with IPVS (build tag vm). IRONVIP_BIN names the binary.
package program
