package pipeline

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/vip"
)

// The agent's parts implement the interfaces of the stages.
var (
	_ Allocator  = (*ipam.Allocator)(nil)
	_ DrainStore = (*store.Bucket[vip.Frontend])(nil)
)

// A real store returns a drain as it was written, to the nanosecond.
func TestDrainsInTheRealStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironvip.db")
	db, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	want := vip.Frontend{
		Key: vip.FrontendKey{Addr: netip.MustParseAddr("2001:db8::1"), Port: 80, LastPort: 89, Protocol: vip.TCP, Audience: vip.InternalClients}, Kind: vip.OnVIP,
		Service: key("web"), Port: "http", Scheduler: vip.MaglevHash, SchedulerFallback: true, SchedulerPort: true,
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}, Forward: vip.ForwardNAT, Affinity: time.Hour, Masquerade: vip.MasqueradeOwn, DrainTimeout: time.Minute,
		Relay:    &vip.ProxySettings{ProxyProtocol: vip.ProxyV2, AcceptProxyFrom: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}},
		Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("[2001:db8::2]:80"), Leaving: vip.InstantOf(time.Now().Add(time.Minute))}},
	}
	if err := store.NewBucket[vip.Frontend](db, "drains").Put(want.Key.String(), want); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = store.Open(path); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all, err := store.NewBucket[vip.Frontend](db, "drains").All()
	if got := all["[2001:db8::1]:80-89/tcp+internal"]; err != nil || len(all) != 1 || !compile.SameFrontend(got, want) {
		t.Errorf("read %+v, %v; written was %+v", all, err, want)
	}
}
