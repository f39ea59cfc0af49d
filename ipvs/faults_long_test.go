//go:build long

package ipvs

import "testing"

func TestEveryFaultAtEachCall(t *testing.T) {
	usual := stride
	stride = 1
	defer func() { stride = usual }()
	t.Run("fails", TestEachCallFails)
	t.Run("lies", TestEachCallLies)
	t.Run("drift", TestDriftAtEachCall)
}
