package planes

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/forwarding"
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
	planesOf := func(mode string) *Planes {
		return with(Options{DB: db, Log: slog.New(slog.DiscardHandler)}, &dataplane{about: forwarding.Dataplane{Mode: mode}})
	}
	serves := func(mode string) *Planes {
		p := planesOf(mode)
		p.noteServing()
		return p
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
	last, err := planesOf(configs.ModeProxy).last() // does not serve
	must.Succeed(t, err)
	expect.Equal(t, last, configs.ModeIPVS, "the dataplane that served last")
	p := serves(configs.ModeIPVS)
	p.forgetLeaving(configs.ModeNFT) // with its last connection
	before = time.Now()
	third := p.leavesSince(configs.ModeNFT)
	expect.False(t, third.Before(before), "the time of what appeared later counts from %s, before %s", third, before)
}
