// Package program tests the built binary as its user meets it: commands, REST,
// configuration, signals, crashes. One file is one scenario.
//
// The same scenarios run on the host with the userspace proxy (build tag
// program) and in the kernel VM with IPVS (build tag vm). IRONVIP_BIN names the
// binary.
package program
