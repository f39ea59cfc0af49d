package stores

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// An agent starts on the store with its leases. It starts on another store only if there is nothing
// to lose, or once a move is recorded.
func TestAStartOnAnotherStore(t *testing.T) {
	bolt := &configs.Config{IPAM: configs.IPAM{Store: configs.StoreBolt}}
	consul := func(prefix, datacenter string) *configs.Config {
		c := &configs.Config{IPAM: configs.IPAM{Store: configs.StoreConsul}, Consul: configs.Consul{Prefix: prefix}}
		c.Consul.Datacenter = datacenter
		return c
	}
	fleet := consul("ironvip", "")
	for _, c := range []struct {
		name   string
		leases bool
		noted  *configs.Config // the last store; nil: none, as in an older version
		starts *configs.Config
		ok     bool
	}{
		{"a new host", false, nil, bolt, true},
		{"a new host of a fleet", false, nil, fleet, true},
		{"a host from before", true, nil, bolt, true},
		{"a host from before, in a fleet", true, nil, fleet, false},
		{"a host that never had anything, in a fleet", false, bolt, fleet, true},
		{"as ever", true, bolt, bolt, true},
		{"from the disk", true, bolt, fleet, false},
		{"in its fleet, with leases of before on the disk", true, fleet, fleet, true},
		{"back to the disk", false, fleet, bolt, false},
		{"another fleet", false, fleet, consul("edge", ""), false},
		{"another datacentre", false, fleet, consul("ironvip", "dc2"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, err := store.Open(filepath.Join(t.TempDir(), "ironvip.db"))
			must.Succeed(t, err)
			defer db.Close()
			if c.leases {
				local := must.Get(localStores(db))(t)
				l := ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.1")}, State: ipam.Held, Since: vip.InstantOf(time.Unix(1, 0)),
					Holders: []ipam.Holder{{Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Source: "static"}}}
				must.Succeed(t, local.Leases.Commit(t.Context(), []ipam.Op{{New: &l}}))
			}
			if c.noted != nil {
				must.Succeed(t, Note(db, PlaceOf(c.noted)))
			}
			_, err = checkPlace(c.starts, db)
			if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "hint: ") {
				t.Errorf("%v", err)
			}
			if err == nil {
				_, err = checkPlace(c.starts, db)
				expect.Succeed(t, err, "a second start")
			}
		})
	}
}

// A wait for a fleet's store ends with the store: a host that may not join gets the reason at once.
func TestWaitForAStoreThatEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		refused := errors.New("the name is taken")
		s := &Stores{Tree: fleet.New(fleet.Options{Node: "lb1", Folders: []string{rest.Folder}}), ended: make(chan struct{})}
		time.AfterFunc(time.Second, func() { s.err = refused; close(s.ended) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Wait(ctx, func(string) {}); err != refused {
			t.Error(err)
		}
	})
}
