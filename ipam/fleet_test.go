package ipam_test

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/storetest"
)

// Hosts that share a store never assign an address twice, lose one, or take one from its holder, whatever fails, and in
// the end they agree.
func TestStormOnASharedStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := memstore.New()
		storetest.Storm{
			Hosts: 3, Steps: 150, Pause: 300 * time.Millisecond, Timeout: 30 * time.Minute,
			Open: func(testing.TB, int) (ipam.Store, func()) { return store, nil },
		}.Run(t)
	})
}
