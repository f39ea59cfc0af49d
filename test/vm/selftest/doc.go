// Package selftest checks the guest that vmrun boots. With the build tag vm its tests run inside it
// and check what the tests of other packages depend on there (IPVS, nftables, namespaces, traffic,
// files, environment). It exports nothing.
package selftest
