//go:build long

package announcer

import (
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestOwnersUnderManyRandomFaults(t *testing.T) {
	const simulations = 60
	ownersUnderRandomFaults(t, seed.Of(t)*simulations, simulations)
}
