package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/vip"
)

// firewallEvery is how often the rules of other programs are read. One reading costs O(chains of nftables).
const firewallEvery = time.Minute

// firewallWatch finds rules of other programs that drop packets of the dataplane.
type firewallWatch struct {
	found atomic.Pointer[[]vip.Problem]
}

// problems returns what the last reading that succeeded has found.
func (w *firewallWatch) problems() []vip.Problem {
	if all := w.found.Load(); all != nil {
		return *all
	}
	return nil
}

// checks returns a line of the node's status with each problem, if there are any.
func (w *firewallWatch) checks() []v1.Check {
	all := w.problems()
	if len(all) == 0 {
		return nil
	}
	return []v1.Check{{Name: "firewall", Level: v1.LevelWarn, Message: all[0].Message, Hint: all[0].Hint, Problems: server.Problems(all), InMessage: 1}}
}

// run reads the rules until the context ends. A rule that can't be read is logged once. If nothing can be read, the
// earlier findings stay, as they do after a panic of find at a rule that it doesn't know.
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
		if err == nil || drops != nil { // else nothing was read
			w.set(drops, log)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// set replaces the problems, and logs the new ones.
func (w *firewallWatch) set(drops []firewall.Drop, log *slog.Logger) {
	before, found := w.problems(), make([]vip.Problem, 0, len(drops))
	for _, d := range drops {
		p := vip.Problem{Code: vip.CodeDataplane, Message: d.String(), Hint: d.Remedy()}
		if found = append(found, p); !slices.Contains(before, p) {
			log.Warn("a firewall drops packets of VIPs", "rule", p.Message, "fix", p.Hint)
		}
	}
	w.found.Store(&found)
}

// firewallQuery returns the packets that must pass with a dataplane.
func firewallQuery(cfg *configs.Config, mode string) firewall.Query {
	var pools []netip.Prefix
	for i := range cfg.Pools {
		pools = append(pools, cfg.Pools[i].CIDRs...)
	}
	return configs.FirewallQuery(mode, cfg.Dataplane.Device, cfg.Dataplane.Role == configs.RoleRealServer, pools)
}
