package ipvs

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func TestConnReuseModeByKernel(t *testing.T) {
	for v, want := range map[string]bool{"4.0": false, "4.1": true, "4.19": true, "5.8": true, "5.9": false, "6.1": false} {
		got := false
		for _, s := range settings(linux.ParseVersion(v)) {
			got = got || s.Key == "ipv4/vs/conn_reuse_mode"
		}
		expect.Equal(t, got, want, "kernel %s: conn_reuse_mode set", v)
	}
}

// Check changes nothing, so the test runs on any machine. Each finding that isn't OK has a
// remedy. One that could not be made without root says so.
func TestCheckAnywhere(t *testing.T) {
	findings := Check(false)
	if len(findings) < 5 {
		t.Fatalf("only %d findings", len(findings))
	}
	for _, f := range findings {
		if f.Name == "" || f.Detail == "" || !f.Unknown && f.OK != (f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
	bad := []host.Finding{{Name: "a", OK: true, Required: true}, {Name: "b", Detail: "x"}, {Name: "c", Required: true, Detail: "is not", Remedy: "do"}}
	if err := host.Err(bad); err == nil || err.Error() != "the dataplane needs c: is not" {
		t.Errorf("%v", err)
	}
}

// Inactive connections count while packets arrive and for another 5 s.
func TestIdleWatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := &idleTracker{now: time.Now, seen: map[conntrack.Flow]sample{}}
		k := conntrack.Flow{Frontend: vip.FrontendKey{Port: 80}, Backend: addrPort("10.1.0.1:80")}
		steps := []struct {
			packets uint64
			wait    time.Duration
			want    bool
		}{
			{10, 0, true}, // the first sample
			{10, 4 * time.Second, true},
			{11, 0, true},
			{11, 4 * time.Second, true},
			{11, 2 * time.Second, false},
			{12, time.Hour, true},
		}
		for i, s := range steps {
			time.Sleep(s.wait)
			expect.Equal(t, w.busy(k, s.packets, w.now()), s.want, "step %d: busy", i)
		}
		for i := range uint16(2000) {
			w.busy(conntrack.Flow{Frontend: vip.FrontendKey{Port: i}, Backend: k.Backend}, 1, w.now())
		}
		time.Sleep(2 * time.Minute)
		w.busy(k, 13, w.now())
		w.forget(w.now())
		expect.Equal(t, len(w.seen), 1, "remembered endpoints")
	})
}
