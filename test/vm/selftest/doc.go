// Package selftest checks the guest that vmrun boots: with the build tag vm its tests run inside it and look for what
// the tests of the other packages take for granted there (IPVS, nftables, namespaces, traffic, files, environment).
// It exports nothing.
package selftest
