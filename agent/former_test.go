package agent

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/takeover"
	"github.com/ironvip/ironvip/vip"
)

// The time of a former dataplane counts from its replacement, also after a restart, and anew if it served in between. An
// agent that ended before it served replaced nothing.
func TestTimeOfAFormerDataplane(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "state.db"))
	agentOf := func(mode string) *agent {
		return &agent{db: db, log: slog.New(slog.DiscardHandler), plane: &plane{about: api.Dataplane{Mode: mode}}}
	}
	serves := func(mode string) *agent {
		a := agentOf(mode)
		a.notePlane()
		return a
	}
	serves(configs.ModeNFT)
	first := serves(configs.ModeIPVS).formerSince(configs.ModeNFT)
	if again := serves(configs.ModeIPVS).formerSince(configs.ModeNFT); !again.Equal(first) {
		t.Errorf("after a restart the time counts from %s, not from %s", again, first)
	}
	before := time.Now()
	if back := serves(configs.ModeNFT).formerSince(configs.ModeIPVS); back.Before(before) {
		t.Errorf("the time of ipvs counts from %s, and it was replaced after %s", back, before)
	}
	if second := serves(configs.ModeIPVS).formerSince(configs.ModeNFT); second.Before(before) {
		t.Errorf("the time of nft, which served again, counts from %s, and it was replaced after %s", second, before)
	}
	agentOf(configs.ModeProxy) // does not serve
	if last, _, err := planeNote(db).Get(lastPlaneKey); err != nil || last.Mode != configs.ModeIPVS {
		t.Errorf("the host ran %q, %v", last.Mode, err)
	}
	a := serves(configs.ModeIPVS)
	a.forgetFormer(configs.ModeNFT) // with its last connection
	before = time.Now()
	if third := a.formerSince(configs.ModeNFT); third.Before(before) {
		t.Errorf("the time of what appeared later counts from %s, before %s", third, before)
	}
}

// The connections of all processes count until each ends. One that has ended is reported with the connections that it had,
// whichever comes first: its end, or that this agent serves all clients.
func TestRelayed(t *testing.T) {
	backend := func(p vip.Protocol, port uint16) takeover.Backend {
		return takeover.Backend{Frontend: vip.FrontendKey{Port: port, Protocol: p}}
	}
	a, b := &relaying{}, &relaying{}
	r := relayed{processes: []*relaying{a, b}}
	r.state(a, takeover.State{PID: 7, Within: time.Hour})
	r.state(b, takeover.State{PID: 8, Within: time.Minute})
	for _, c := range []takeover.Count{{Backend: backend(vip.TCP, 1), N: 5}, {Backend: backend(vip.TCP, 2), N: 1}, {Backend: backend(vip.UDP, 3), N: 2}, {Backend: backend(vip.TCP, 1), N: 2}, {Backend: backend(vip.TCP, 2)}} {
		r.count(a, c)
	}
	r.count(b, takeover.Count{Backend: backend(vip.TCP, 1), N: 4})
	sums := map[takeover.Backend]int64{}
	r.attach(func(c takeover.Count) { sums[c.Backend] = c.N })
	want := func(when string, tcp, udp int64) {
		t.Helper()
		if sums[backend(vip.TCP, 1)] != tcp || sums[backend(vip.UDP, 3)] != udp {
			t.Errorf("%s: %v", when, sums)
		}
	}
	want("both", 6, 2)
	if now := r.now(); len(now) > 0 {
		t.Errorf("they accept clients: %s", now[0])
	}
	if f, last := r.end(b); f != nil || last {
		t.Errorf("ended before this agent serves all clients: %v, last %t", f, last)
	}
	want("one", 2, 2)
	all, ended := r.retire()
	if len(all) != 2 || len(ended) != 1 || ended[0].process != 8 || total(ended[0].open) != 4 {
		t.Errorf("%v, of which %v have ended", all, ended)
	}
	now := r.now()
	if len(now) != 1 || now[0].String() != "proxy drains in process 7: 2 connections by tcp, 1h0m0s at most" {
		t.Errorf("%v", now)
	}
	if f, last := r.end(a); f == nil || f.process != 7 || total(f.open) != 2 || !last {
		t.Errorf("ended: %v, last %t", f, last)
	}
	want("none", 0, 0)
	if now := r.now(); len(now) > 0 || len(r.counts()) > 0 {
		t.Errorf("after the end: %v, %v", now, r.counts())
	}
}
