package memstore

import (
	"errors"
	"testing"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) ipam.Store { return New() },
		storetest.Fault(func(t *testing.T, s ipam.Store) func() {
			s.(*Store).Fail(errors.New("no space left on device"))
			return func() { s.(*Store).Fail(nil) }
		}))
}
