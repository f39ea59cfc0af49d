package health

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/keep"
	"github.com/ironvip/ironvip/vip"
)

// Store keeps rows across a restart, by the text of their key.
type Store = keep.Store[Row]

// Row is a stored row.
type Row struct {
	vip.BackendHealth
	Boot string `json:",omitempty"` // of the host, if the backend is on loopback: its program ends with the host
}

// bootID returns an identifier of the running kernel, "" if it is not known.
func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}

// nameOf returns the key of a row in a Store.
func nameOf(k vip.BackendKey) string {
	return k.Service.Namespace + "/" + k.Service.Name + "/" + k.ID()
}

// restore reads the rows of an earlier run.
func restore(store Store, boot string, log *slog.Logger) map[vip.BackendKey]vip.BackendHealth {
	out := map[vip.BackendKey]vip.BackendHealth{}
	if store == nil {
		return out
	}
	stored, err := store.All()
	if err != nil {
		log.Error("read the health of backends before the restart; what is lost is unknown until its first probe", "err", err)
	}
	for name, row := range stored {
		if name == nameOf(row.Backend) && len(row.Checks) > 0 && (row.Boot == "" || row.Boot == boot) {
			out[row.Backend] = row.BackendHealth
		}
	}
	return out
}

// restoredResult returns the result of a check in a row of an earlier run, or the zero Result. Checks of this host at its VIPs
// count only if all of them had passed, because the row does not tell which is which.
func restoredResult(row vip.BackendHealth, c check) (r probe.Result) {
	if c.target.Private() && slices.ContainsFunc(row.Checks, func(r vip.CheckResult) bool { return r.Health != vip.Healthy }) {
		return r
	}
	for _, was := range row.Checks {
		if was.Type != c.target.Check().Type || was.Port != c.target.Addr.Port() || was.Health == vip.Unknown {
			continue
		}
		r = probe.Result{Target: c.target, Health: was.Health, Since: was.Since, Reason: was.Reason, Outcome: probe.OK}
		if was.Held() { // the hold ended with the process
			r.Health = vip.Unhealthy
		}
		if r.Health == vip.Unhealthy {
			r.Outcome = probe.TimedOut
		}
		return r
	}
	return r
}

// keepPause is the longest time that a change waits to be written. A loss of the last changes costs a backend
// only the time to its next probes.
const keepPause = time.Second

func (s *Stage) keep(ctx context.Context) {
	k := keep.Keeper[vip.BackendKey, vip.BackendHealth, Row]{
		Table: s.Health, Store: s.Store, Log: s.Log, What: "the health of backends", Pause: keepPause,
		Name: nameOf, Row: func(row *vip.BackendHealth) Row {
			r := Row{BackendHealth: *row}
			if row.Backend.Address.IsLoopback() {
				r.Boot = s.boot
			}
			return r
		},
	}
	k.Run(ctx)
}
