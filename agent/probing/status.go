package probing

import (
	"fmt"
	"strings"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/health/share"
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
	if f, is := s.Faults[probe.NoPath]; is {
		add("did not run for lack of a path to the backend"+why(f), f, "see the line probe paths; ironvip doctor shows what the dataplane lacks")
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

// disputeChecks returns the line of the status on results that differ from those of the fleet's other
// probers. A single backend that fails here is a matter of its own path.
func disputeChecks(d share.Disputes) []v1.Check {
	check := v1.Check{Name: "probe results", Level: v1.LevelWarn}
	var parts, hints []string
	if d.Failing > 1 && 2*d.Failing > d.Probes {
		parts = append(parts, fmt.Sprintf("health checks of this host fail for %d of %s, which other hosts find healthy",
			d.Failing, text.Plural(d.Probes, "target")))
		hints = append(hints, "check this host's network, routes and firewall")
	}
	if n := len(d.Passing); n > 0 {
		names := make([]string, n)
		for i, addr := range d.Passing {
			names[i] = addr.String()
		}
		what, by := "targets that pass the health checks of this host are", strings.Join(d.By, " and ")
		if n == 1 {
			what = "target that passes the health checks of this host is"
		}
		parts = append(parts, fmt.Sprintf("%d %s unhealthy for the fleet, found by %s: %s", n, what, by, text.First(3, names, ", ")))
		hints = append(hints, "check the way to the backends from "+by)
	}
	if parts == nil {
		return nil
	}
	check.Message = strings.Join(parts, "; ")
	check.Hint = strings.Join(append(hints, "compare the hosts: ironvip debug table verdicts"), "; ")
	return []v1.Check{check}
}
