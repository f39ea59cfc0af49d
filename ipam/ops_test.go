package ipam_test

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/test/storetest"
)

// Gain and Loss create and remove a lease with any number of holders.
func TestGainAndLoss(t *testing.T) {
	for _, holders := range []int{1, ipam.MaxHolders, ipam.MaxHolders + 1, 5*ipam.MaxHolders - 1} {
		s := memstore.New()
		l := ipam.Lease{Resource: ipam.Resource{Addr: addr("192.0.2.1")}, State: ipam.Held, ShareKey: "k"}
		for i := range holders {
			l.Holders = append(l.Holders, ipam.Holder{Service: key(fmt.Sprint("s", i))})
		}
		for _, ops := range [][]ipam.Op{ipam.Gain(l), ipam.Loss(l)} {
			if err := s.Commit(t.Context(), ops); err != nil {
				t.Fatal(err)
			}
			for i := range ops {
				if ops[i].Err != nil {
					t.Errorf("%d holders, op %d: %v", holders, i, ops[i].Err)
				}
			}
			all := storetest.Leases(t, s)
			if gained := ops[0].Old == nil; gained && (len(all) != 1 || !all[0].Lease.Equal(l)) || !gained && len(all) != 0 {
				t.Errorf("%d holders: %d leases", holders, len(all))
			}
		}
	}
}
