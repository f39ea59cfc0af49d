package agent

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/takeover"
	"github.com/ironvip/ironvip/vip"
)

// The time of a former dataplane counts from its replacement, also after a restart, and anew if it served in between. An
// agent that ended before it served replaced nothing.
func TestTimeOfAFormerDataplane(t *testing.T) {
	db, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
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

// The connections of the predecessor are those that it has reported, whichever comes first: its end or its farewell.
func TestRelayed(t *testing.T) {
	backend := func(p vip.Protocol, port uint16) takeover.Backend {
		return takeover.Backend{Frontend: vip.FrontendKey{Port: port, Protocol: p}}
	}
	count := func(r *relayed) {
		r.count(takeover.Count{Backend: backend(vip.TCP, 1), N: 5})
		r.count(takeover.Count{Backend: backend(vip.TCP, 2), N: 1})
		r.count(takeover.Count{Backend: backend(vip.UDP, 3), N: 2})
		r.count(takeover.Count{Backend: backend(vip.TCP, 1), N: 2})
		r.count(takeover.Count{Backend: backend(vip.TCP, 2)})
	}
	var r relayed
	count(&r)
	if f := r.now(); f != nil {
		t.Errorf("it accepts clients: %s", f)
	}
	if f := r.retire(takeover.Farewell{PID: 7, Within: time.Hour}); f != nil {
		t.Errorf("it has not ended: %s", f)
	}
	if f := r.now(); f == nil || f.String() != "proxy drains in process 7: 2 connections by tcp, 1h0m0s at most" {
		t.Errorf("%s", f)
	}
	if got := r.counts(); len(got) != 2 {
		t.Errorf("backends with connections: %v", got)
	}
	if f := r.end(); f == nil || total(f.open) != 2 || r.now() != nil {
		t.Errorf("ended with %v, then %v", f, r.now())
	}
	var early relayed
	if early.end() != nil || early.retire(takeover.Farewell{PID: 7}) == nil || early.now() != nil {
		t.Error("a predecessor that ended before its farewell was read is not reported once")
	}
}
