//go:build linux && vm

package scenario

import "testing"

// TestIPVS runs the table on the kernel's IPVS.
func TestIPVS(t *testing.T) {
	inNamespace(t, func(t *testing.T) { runTable(t, newNamespaces(t, kernel)) })
}
