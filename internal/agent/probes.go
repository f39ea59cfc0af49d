package agent

import (
	"fmt"
	"strings"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/text"
)

// probeChecks returns the line of the status on health checks that proved nothing in the last minute
// because of this host, or started late. Files is the process's limit of descriptors.
func probeChecks(s probe.Stats, files uint64, now time.Time) []v1.Check {
	var words, hints []string
	add := func(what string, f probe.Fault, hint string) {
		words = append(words, fmt.Sprintf("%s %s within %s", text.Plural(int(f.Probes), "health check"), what,
			max(now.Sub(f.Since.Time()), time.Second).Round(time.Second)))
		hints = append(hints, hint)
	}
	why := func(f probe.Fault) string { return ": " + f.Reason + ";" }
	if f, is := s.Faults[probe.NoDescriptors]; is {
		add("did not run for lack of file descriptors"+why(f), f, fmt.Sprintf("raise LimitNOFILE (now %d)", files))
	}
	if f, is := s.Faults[probe.Starved]; is {
		add("timed out without proving anything"+why(f), f, "reduce the load of this host, or give the agent more of its processors (CPUWeight, CPUQuota)")
	}
	if f, is := s.Faults[probe.Local]; is {
		add("failed on this host"+why(f), f, "see the agent's log")
	}
	for _, d := range s.Delayed {
		hint := fmt.Sprintf("find the backends that time out, shorten the timeouts of their checks, or raise LimitNOFILE (now %d)", files)
		if d.Types == "exec" {
			hint = "shorten the commands or the timeouts of exec checks, or lengthen their intervals"
		}
		add(fmt.Sprintf("of type %s started late, as at most %d run at once and %d wait;", d.Types, d.Limit, d.Queue), d.Fault, hint)
	}
	if words == nil {
		return nil
	}
	return []v1.Check{{Name: "probes", Level: v1.LevelWarn,
		Message: strings.Join(words, ", and ") + "; backends keep their health meanwhile, and clients their backends",
		Hint:    strings.Join(hints, "; ")}}
}
