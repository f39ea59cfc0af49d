//go:build system

package resolvers

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"testing"

	names "github.com/ironvip/ironvip/dns"
	"github.com/ironvip/ironvip/dns/server"
	dnszone "github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// servedVariable makes a process of this test a DNS server with that number of names.
const servedVariable = "IRONVIP_TEST_SERVED"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(servedVariable)); err == nil {
		if err := serve(n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve answers for the names of n services until SIGTERM, from the tables that the agent has. It prints
// the resident memory of a process that has none of them, and that of the tables, which exist without
// DNS, too.
func serve(n int) error {
	began := usedMemory()
	clock := &table.Clock{}
	services, allocations := table.New(clock, vip.KeyOfService, nil), table.New(clock, vip.KeyOfAllocation, nil)
	leases := table.New(clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)
	for i := range n {
		s := &vip.Service{Key: vip.ServiceKey{Namespace: "prod", Name: fmt.Sprintf("web%d", i)}, Ports: []vip.Port{{Port: 80}}}
		services.Set(*s)
		allocations.Set(vip.Allocation{Asked: s, VIPs: []netip.Addr{address(i)}})
	}
	fmt.Fprintf(os.Stderr, "without names: %.1f MiB, tables: %.1f MiB\n", began, usedMemory()-began)
	stage, err := names.New(names.Options{Settings: dnszone.Settings{Domain: zone, TTL: 30e9, NegativeTTL: 1e9, ShortNames: true, Servers: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		Clock: clock, Services: services, Allocations: allocations, Leases: leases})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go stage.Run(ctx)
	<-stage.Synced()
	usedMemory() // also returns what is free
	err = server.New(server.Options{Settings: server.Settings{Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:" + benchPort)}}, Answerer: stage}).Run(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// usedMemory returns the resident memory of this process in MiB, without what is free.
func usedMemory() float64 {
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	return memory(string(b))
}
