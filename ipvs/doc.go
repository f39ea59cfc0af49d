// Package ipvs is the kernel dataplane: frontends as services of Linux IPVS, rules in an
// nftables table of its own, and the sysctls that these need. Package plane/kernel/vips
// makes their virtual addresses addresses of this host.
//
// Its inputs are updates of frontends (reconcile.Plane). Its outputs are as few
// netlink messages as the change needs. It owns the IPVS services on addresses of
// our pools, the recorded node ports, and its own table. It never flushes, runs no
// program, loads no module, and never changes what isn't ours.
//
// Source code organization, in the order of one change:
//
//	target.go       Target, its options and its recorded state
//	apply.go        Apply: the phases of a batch; item.go has a struct for each
//	accept.go       phase 1: checks updates, finds foreign services in their place
//	stages.go       the table, before and after the services
//	program.go      the services: rounds of ops, retries, outcomes
//	plan.go         pure: which ops change one service
//	elements.go     pure: which elements of the table a frontend needs
//	marks.go        firewall marks of services by mark
//	realserver.go   tunnel devices on a real server
//	actual.go       Actual: reads the kernel, adopts and reports damage; Check: what others change
//	leave.go        Find, Leave and Remove: what a dataplane left in the kernel
//	foreign.go      Foreign: what others have in IPVS, as commands of ipvsadm
//	connections.go  open connections of draining backends, and the list of all
//	stats.go        statistics
//	unsupported.go  what IPVS can't do
//	check.go        what the host lacks; settings.go has the sysctls
//	access.go       the interfaces to the kernel, which tests replace
//
// Package internal/kernel carries out what ipvs decides of IPVS, and the packages below plane/kernel
// the rest: filter (the nftables table), usage (what frontends share), host (tunnel devices, sysctls, ports)
// and conntrack.
package ipvs
