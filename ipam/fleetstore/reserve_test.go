package fleetstore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	testwait "github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// rivals are allocators of hosts that share leases.
func rivals(t *testing.T, open func(name string) ipam.Store) []*allocator.Allocator {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	out := make([]*allocator.Allocator, 3)
	for i := range out {
		name := fmt.Sprintf("lb%d", i+1)
		cfg := ipam.Config{ReuseDelay: time.Minute, Pools: poolOf("192.0.2.0/24")}
		a := must.Get(allocator.New(ctx, open(name), cfg, allocator.Options{Clock: &table.Clock{}, Node: name}))(t)
		out[i] = a
		running.Go(func() { _ = a.Run(ctx) })
	}
	return out
}

// reserveAtOnce has hosts reserve one address after another at the same time: one of them wins each.
// The winner's service gets the address on another host, and keeps the reservation.
func reserveAtOnce(t *testing.T, hosts []*allocator.Allocator) {
	for n := range 5 {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(20 + n)})
		won := make([]error, len(hosts))
		var all sync.WaitGroup
		for i, a := range hosts {
			all.Go(func() { _, won[i] = a.Reserve(t.Context(), ipam.Reserving{Addr: addr, For: serviceOf(n, i)}) })
		}
		all.Wait()
		winner := -1
		for i, err := range won {
			p, taken := errors.AsType[vip.Problem](err)
			switch {
			case err == nil && winner < 0:
				winner = i
			case err == nil:
				t.Errorf("%s: hosts %d and %d have reserved it", addr, winner, i)
			case !taken || p.Code != vip.CodeAddressTaken:
				t.Errorf("%s: host %d: %v", addr, i, err)
			}
		}
		must.AtLeast(t, winner, 0, "%s: nobody has reserved it: %v", addr, won)
		other, k := hosts[(winner+1)%len(hosts)], serviceOf(n, winner)
		state := func(a *allocator.Allocator) ipam.Lease {
			if l, _, ok := a.Leases().Get(ipam.Resource{Addr: addr}); ok {
				return *l
			}
			return ipam.Lease{}
		}
		testwait.Until(t, "the other host sees it", func() bool { return state(other).KeptFor(k) }, func() any { return state(other) })
		got := other.Assign(t.Context(), []*vip.Service{{Key: k, Source: "static"}})[0]
		if len(got.VIPs) != 1 || got.VIPs[0] != addr || !got.Reserved[0] {
			t.Errorf("%s was given %+v", k, got)
		}
		expect.Succeed(t, other.Release(t.Context(), []ipam.Released{{Service: k}})[0])
		for _, a := range hosts {
			testwait.Until(t, "every host sees it reserved again", func() bool { return state(a).KeptFor(k) && state(a).State == ipam.Reserved }, func() any { return state(a) })
		}
	}
}

func serviceOf(n, host int) vip.ServiceKey {
	return vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: fmt.Sprintf("s%d-%d", n, host)}
}

func TestReservationAtOnce(t *testing.T) {
	m := fleettest.NewMemory()
	reserveAtOnce(t, rivals(t, func(name string) ipam.Store { return start(t, m, name).Store }))
}

// A host that holds an address recalls its service when another host reserves the address or releases
// it: the allocation says so.
func TestReservationByAnotherHost(t *testing.T) {
	m := fleettest.NewMemory()
	hosts := rivals(t, func(name string) ipam.Store { return start(t, m, name).Store })
	web := &vip.Service{Key: vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: "web"}, Source: "static"}
	addr := hosts[0].Assign(t.Context(), []*vip.Service{web})[0].VIPs[0]
	testwait.Until(t, "the other host sees the lease", func() bool { return hosts[1].Leases().Row(ipam.Resource{Addr: addr}) != nil })
	for _, change := range []func() error{
		func() error {
			_, err := hosts[1].Reserve(t.Context(), ipam.Reserving{Addr: addr, For: web.Key})
			return err
		},
		func() error { _, err := hosts[1].Unreserve(t.Context(), addr); return err },
	} {
		hosts[0].TakeRecalls()
		must.Succeed(t, change())
		testwait.Until(t, "the service is recalled", func() bool { return slices.Contains(hosts[0].TakeRecalls(), web.Key) })
		got := hosts[0].Assign(t.Context(), []*vip.Service{web})[0]
		l, _, _ := hosts[1].Leases().Get(ipam.Resource{Addr: addr})
		if len(got.VIPs) != 1 || got.VIPs[0] != addr || got.Reserved[0] != (l.Reservation != nil) {
			t.Errorf("%+v with the lease %+v", got, l)
		}
	}
}
