package proxy

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestWildcardPorts(t *testing.T) {
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	for _, c := range []struct {
		table    string
		protocol vip.Protocol
		want     []uint16
	}{
		{"   0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000", vip.TCP, []uint16{80}},
		{"   0: 00000000:0050 00000000:0000 07 00000000:00000000 00:00000000", vip.UDP, []uint16{80}},
		{"   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A", vip.TCP, []uint16{80}},
		{"   0: 00000000:0050 00000000:0000 01 00000000:00000000", vip.TCP, nil}, // doesn't listen
		{"   0: 0100007F:0050 00000000:0000 0A 00000000:00000000", vip.TCP, nil}, // a specific address
		{"   0: 0100007F:0050 00000000:0000 0A 0\n   1: 00000000:FFFF 00000000:0000 0A 0\n   2: 00000000:0016 00000000:0000 0A 0", vip.TCP, []uint16{22, 65535}},
		{"   0: 00000000:0050 00000000:0000 03 0\n   1: 00000000:0051 00000000:0000 0A 0", vip.TCP, []uint16{81}}, // one that is being made, among the listening of old kernels
		{"   0: 0100007F:0050 00000000:0000 01 0\n   1: 00000000:0051 00000000:0000 07 0", vip.UDP, []uint16{81}}, // UDP sockets are in any order
		{"garbage", vip.TCP, nil}, {"a b c d", vip.UDP, nil}, {"a 0:10000 c d", vip.UDP, nil}, {"", vip.TCP, nil},
	} {
		got := slices.Sorted(maps.Keys(wildcardPorts(strings.NewReader(heading+c.table), c.protocol)))
		expect.SameList(t, got, c.want, "%q", c.table)
	}
}

// The connections of a busy host follow the listening sockets in the list and aren't read.
func TestWildcardPortsOfABusyHost(t *testing.T) {
	connections := strings.NewReader(strings.Repeat("   1: 0100007F:0050 0100007F:8000 01 00000000:00000000\n", 100_000))
	got := wildcardPorts(io.MultiReader(strings.NewReader("   0: 00000000:0050 00000000:0000 0A 0\n"), connections), vip.TCP)
	if _, ok := got[80]; !ok || len(got) != 1 {
		t.Error(got)
	}
	if read := connections.Size() - int64(connections.Len()); read > 64<<10 {
		t.Errorf("%d bytes of connections were read", read)
	}
}

// Frontends that can't listen cause one read of the kernel's list of sockets for the whole batch.
// Others cause none.
func TestSocketsAreListedOncePerApply(t *testing.T) {
	p := newTarget(t, Options{})
	read := map[string]int{}
	p.wildcards.open = func(name string) (io.ReadCloser, error) {
		read[name]++
		return os.Open(name)
	}
	p.must(onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin))
	expect.Equal(t, len(read), 0, "%v for a frontend that listens", read)
	l := must.Get(net.Listen("tcp4", "0.0.0.0:0"))(t)
	defer l.Close()
	var batch []reconcile.Update[vip.FrontendKey, vip.Frontend]
	for i := range 20 {
		key := vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{127, 96, 1, byte(i)}), Port: l.Addr().(*net.TCPAddr).AddrPort().Port(), Protocol: vip.TCP}
		batch = append(batch, reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: key, New: onVIP(key, vip.RoundRobin)})
	}
	for round := 1; round <= 2; round++ { // each batch reads again, because the holder of a port may have changed
		must.Succeed(t, p.Apply(context.Background(), batch))
		for _, u := range batch {
			if want := fmt.Sprintf("another process holds 0.0.0.0:%d/tcp", u.Key.Port); u.Err == nil || !strings.Contains(u.Err.Error(), want) {
				t.Errorf("%v, want %s", u.Err, want)
			}
		}
		if n := read["/proc/net/tcp"]; n != round || len(read) != 1 {
			t.Errorf("%v after %d batches", read, round)
		}
	}
}
