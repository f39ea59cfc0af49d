// Package ipvs is the kernel dataplane: frontends as services of Linux IPVS,
// their virtual addresses on a dummy device, refusal and masquerade rules in an
// nftables table of our own, and the sysctls all that needs.
//
// In come updates of frontends (reconcile.Plane); out go as few netlink
// messages as the change needs. Pure code decides (plan.go, elements.go, stages.go);
// each kind of kernel access sits in one thin file (netlink.go, nft.go,
// device.go, sysctl.go, conntrack.go). The package owns the IPVS services on
// addresses of our pools, the node ports it recorded, the addresses on its own
// device and its own table. It never flushes, runs no program, loads no module,
// and leaves what isn't ours as it found it. docs/ipvs.md tells how to look at
// what it does.
package ipvs
