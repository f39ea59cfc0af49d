package agent

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// The time of a dataplane that leaves counts from its replacement, also after a restart, and anew if it served in between. An
// agent that ended before it served replaced nothing.
func TestTimeOfADataplaneThatLeaves(t *testing.T) {
	db := must.Get(store.Open(filepath.Join(t.TempDir(), "state.db")))(t)
	defer db.Close()
	agentOf := func(mode string) *agent {
		return &agent{stores: &stores.Stores{DB: db}, log: slog.New(slog.DiscardHandler), planes: newPlanes(&dataplane{about: api.Dataplane{Mode: mode}})}
	}
	serves := func(mode string) *agent {
		a := agentOf(mode)
		a.notePlane()
		return a
	}
	serves(configs.ModeNFT)
	first := serves(configs.ModeIPVS).leavesSince(configs.ModeNFT)
	again := serves(configs.ModeIPVS).leavesSince(configs.ModeNFT)
	expect.True(t, again.Equal(first), "after a restart the time counts from %s, not from %s", again, first)
	before := time.Now()
	back := serves(configs.ModeNFT).leavesSince(configs.ModeIPVS)
	expect.False(t, back.Before(before), "the time of ipvs counts from %s, and it was replaced after %s", back, before)
	if second := serves(configs.ModeIPVS).leavesSince(configs.ModeNFT); second.Before(before) {
		t.Errorf("the time of nft, which served again, counts from %s, and it was replaced after %s", second, before)
	}
	agentOf(configs.ModeProxy) // does not serve
	if last, _, err := planeNote(db).Get(lastPlaneKey); err != nil || last.Mode != configs.ModeIPVS {
		t.Errorf("the host ran %q, %v", last.Mode, err)
	}
	a := serves(configs.ModeIPVS)
	a.forgetLeaving(configs.ModeNFT) // with its last connection
	before = time.Now()
	third := a.leavesSince(configs.ModeNFT)
	expect.False(t, third.Before(before), "the time of what appeared later counts from %s, before %s", third, before)
}
