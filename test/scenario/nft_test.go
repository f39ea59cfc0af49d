//go:build linux

package scenario

import "testing"

// TestNFTInNamespaces runs the table on the host kernel's nftables, without SCTP, which few kernels
// of virtual machines have.
// Slow: it waits for what the kernel does by itself, such as the end of an affinity, in a hundred scenarios.
func TestNFTInNamespaces(t *testing.T) {
	t.Parallel() // beside the proxy's table: each has its own process and namespaces
	inNamespace(t, func(t *testing.T) {
		l := newNamespaces(t, nftables)
		l.lacks = []string{"sctp"}
		runTable(t, l, every())
	})
}
