package nft

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// A client that a service remembers never reaches a backend of another service, even if that got the
// number of the client's backend after a restart.
func TestRememberedClientStaysWithItsService(t *testing.T) {
	w := newWorld(t)
	all := w.servers("tcp", false, 0)
	other := frontend("10.96.0.2", 80, vip.TCP, all[1])
	other.Affinity = time.Minute
	w.set(other)
	f := frontend("10.96.0.1", 80, vip.TCP, all[0])
	f.Affinity = time.Minute
	w.set(f)
	if got := w.asks(w.Client, f.Key, 80, 1); got["backend1"] != 1 {
		t.Fatalf("%v", got)
	}
	drained := vip.Endpoint{Addr: all[0].Addr}
	f.Backends = []vip.Endpoint{drained}
	w.set(f)
	w.planeIn = newPlane(t, w.Director)
	other.Backends = all
	w.set(other)
	f.Backends = []vip.Endpoint{drained, all[1]}
	w.set(f)
	if got := w.asks(w.Client, f.Key, 80, 2); got["backend2"] != 2 {
		t.Errorf("a client got %v, want the service's only usable backend", got)
	}
}

// When the numbers of services end, the table is rebuilt, and they begin anew.
func TestNumbersBeginAnew(t *testing.T) {
	w := newWorld(t)
	all := w.servers("tcp", false, 0)
	f := frontend("10.96.0.1", 80, vip.TCP, all[0])
	f.Affinity = time.Minute
	w.set(f)
	w.content.highest.service = maskNumber
	g := frontend("10.96.0.2", 80, vip.TCP, all[1])
	w.set(g)
	expect.Equal(t, w.content.highest.service, 2, "the highest number is %d, want that of 2 services", w.content.highest.service)
	if got := w.asks(w.Client, f.Key, 80, 2); got["backend1"] != 2 {
		t.Errorf("%v", got)
	}
	if got := w.asks(w.Client, g.Key, 80, 2); got["backend2"] != 2 {
		t.Errorf("%v", got)
	}
}

// Reading a table that another program has changed takes no numbers.
func TestReadingTakesNoNumbers(t *testing.T) {
	w := newWorld(t)
	f := frontend("10.96.0.1", 80, vip.TCP, w.servers("tcp", false, 0)...)
	f.Affinity = time.Minute
	w.set(f)
	w.run("nft flush chain inet ironvip_nft arriving")
	before := w.content.highest
	for range 3 {
		for _, err := range w.Actual(t.Context()) {
			must.Succeed(t, err)
		}
	}
	expect.Equal(t, w.content.highest, before, "numbers were %v, are %v", before, w.content.highest)
}
