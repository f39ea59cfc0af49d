//go:build linux && vm

package scenario

import (
	"slices"
	"testing"
)

// TestIPVS runs the table on the kernel's IPVS.
func TestIPVS(t *testing.T) {
	inNamespace(t, func(t *testing.T) { runTable(t, newNamespaces(t, kernel), every()) })
}

// TestNFT runs what TestNFTInNamespaces has not everywhere on the VM's nftables: SCTP and a dummy device, with the plain
// services of the table.
func TestNFT(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		runTable(t, newNamespaces(t, nftables), slices.DeleteFunc(every(), func(s scenario) bool {
			plain := slices.ContainsFunc(basics[:2], func(b scenario) bool { return b.name == s.name })
			return !plain && !slices.Contains(s.modules, "sctp")
		}))
	})
}
