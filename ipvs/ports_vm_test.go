//go:build linux && vm

package ipvs

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// A node port on which a process of the host listens is rejected by name, and the process remains
// reachable. When the process ends, the node port is served. A served node port is kept when its
// agent restarts.
func TestNodePortThatTheHostListensOn(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	var listener net.Listener
	lab.Director.Do(func() {
		var err error
		if listener, err = net.Listen("tcp4", "0.0.0.0:30090"); err != nil {
			t.Fatal(err)
		}
	})
	defer listener.Close()
	f := frontend("10.77.0.1:30090", vip.TCP, addrs("10.77.1.2:80")...)
	f.Kind = vip.OnHost
	good := frontend("10.77.0.1:30091", vip.TCP, addrs("10.77.1.2:80")...)
	good.Kind = vip.OnHost
	for range 2 { // and again, as the reconciler does
		batch := []updateOf{{Key: f.Key, New: f}, {Key: good.Key, New: good, Repair: true}}
		if err := p.Apply(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		problem, ok := errors.AsType[vip.Problem](batch[0].Err)
		if !ok || problem.Code != vip.CodePortTaken || !strings.Contains(problem.Message, "10.77.0.1:30090/tcp") {
			t.Fatalf("a port that a process has gives %v", batch[0].Err)
		}
		if batch[1].Err != nil {
			t.Errorf("its neighbour: %v", batch[1].Err)
		}
	}
	p.Wants(t, good)
	if out := run(t, lab.Director, "ipvsadm", "-Sn"); strings.Contains(out, "30090") {
		t.Errorf("ipvs has it nevertheless:\n%s", out)
	}
	lab.Client.Do(func() {
		c, err := net.Dial("tcp4", "10.77.0.1:30090")
		if err != nil {
			t.Fatalf("the process is not reached any more: %v", err)
		}
		c.Close()
	})

	listener.Close()
	p.Create(t, f)
	p.Wants(t, f, good)

	lab.Director.Do(func() {
		late, err := net.Listen("tcp4", "0.0.0.0:30090")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { late.Close() })
	})
	again := newPlane(t, lab.Director)
	again.Wants(t, f, good)
	again.change(t, f, with(f, func(f *vip.Frontend) { f.Scheduler = vip.LeastConnection }))
}
