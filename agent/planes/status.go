package planes

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/text"
)

// Checks returns the lines of `ironvip status` about the dataplanes.
func (p *Planes) Checks() []v1.Check {
	checks := append(p.switchChecks(), p.leavingChecks()...)
	d := p.plane()
	if d.proxy != nil {
		checks = append(checks, proxyChecks(d.proxy)...)
	}
	if d.pathLoop != nil {
		checks = append(checks, pathChecks(d.pathLoop.Stats(), d.Paths.Blocked(), p.o.Tables.AppliedPaths)...)
	}
	return checks
}

// failureShown is how long status shows a failure.
const failureShown = time.Hour

// switchChecks returns the line of `ironvip status` about a switch that has failed lately.
func (p *Planes) switchChecks() []v1.Check {
	f := p.failed.Load()
	if f == nil || time.Since(f.at) > failureShown {
		return nil
	}
	return []v1.Check{{Name: "switch", Level: v1.LevelWarn,
		Message: fmt.Sprintf("%s could not run %s ago, so %s goes on: %s", f.to, time.Since(f.at).Round(time.Second), p.Mode(), f.why),
		Hint:    "see the log of the agent, then try again"}}
}

func (x *leaving) String() string {
	s := x.state.Load()
	if s.err != nil {
		return s.err.Error()
	}
	return fmt.Sprintf("%s drains: %s, %s at most", x.mode, cmp.Or(connectionsText(s.open), "no connections"), max(0, time.Until(s.until).Round(time.Second)))
}

// view returns the dataplane for the API.
func (x *leaving) view() v1.LeavingDataplane {
	s := x.state.Load()
	row := v1.LeavingDataplane{Mode: x.mode, Connections: total(s.open)}
	if s.err != nil {
		row.Problem = s.err.Error()
	} else {
		row.Until = &s.until
	}
	return row
}

// leavingChecks returns the line of `ironvip status` about the dataplanes that leave.
func (p *Planes) leavingChecks() []v1.Check {
	all := p.shown()
	if len(all) == 0 {
		return nil
	}
	c := v1.Check{Name: "leaving dataplane", Level: v1.LevelOK, Message: text.Join(all, "; ", (*leaving).String)}
	if slices.ContainsFunc(all, func(x *leaving) bool { return x.state.Load().err != nil }) {
		c.Level, c.Hint = v1.LevelWarn, "it is tried again; ironvip events"
	}
	return []v1.Check{c}
}
