package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/nft"
)

// firewallEvery is how often the rules of other programs are read. One reading costs O(chains of nftables).
const firewallEvery = time.Minute

// firewallWatch finds rules of other programs that drop packets of the dataplane.
type firewallWatch struct {
	found atomic.Pointer[[]v1.Finding]
}

// findings returns the findings of the last reading that succeeded.
func (w *firewallWatch) findings() []v1.Finding {
	if all := w.found.Load(); all != nil {
		return *all
	}
	return nil
}

// run reads the rules until the context ends. What can't be read is logged once, and doesn't end what was found before;
// neither does a panic of find at a rule that it doesn't know.
func (w *firewallWatch) run(ctx context.Context, find func() ([]firewall.Drop, error), log *slog.Logger) {
	tick := time.NewTicker(firewallEvery)
	defer tick.Stop()
	unread := ""
	for {
		var drops []firewall.Drop
		err := parallel.Recovered(func() (err error) {
			drops, err = find()
			return err
		})
		switch {
		case err == nil:
			unread = ""
		case err.Error() != unread:
			unread = err.Error()
			log.Warn("rules of other programs were not read: whether they drop packets of VIPs is not known", "err", err)
		}
		if err == nil || len(drops) > 0 {
			w.set(drops, log)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// set replaces the findings, and logs the new ones.
func (w *firewallWatch) set(drops []firewall.Drop, log *slog.Logger) {
	before, found := w.findings(), make([]v1.Finding, 0, len(drops))
	for _, d := range drops {
		f := v1.Finding{Level: v1.LevelWarn, Name: "firewall", Message: d.String(), Fix: d.Remedy()}
		if found = append(found, f); !slices.Contains(before, f) {
			log.Warn("a firewall drops packets of VIPs", "rule", f.Message, "fix", f.Fix)
		}
	}
	w.found.Store(&found)
}

// firewallQuery returns the packets that must pass with a dataplane.
func firewallQuery(cfg *configs.Config, mode string) firewall.Query {
	ours := ipvs.TableOf(cfg.Dataplane.Device)
	q := firewall.Query{Mode: mode, RealServer: cfg.Dataplane.Role == configs.RoleRealServer, Ours: []string{ours, probepath.TableOf(ours), nft.TableOf(cfg.Dataplane.Device)}}
	for i := range cfg.Pools {
		q.Pools = append(q.Pools, cfg.Pools[i].CIDRs...)
	}
	return q
}
