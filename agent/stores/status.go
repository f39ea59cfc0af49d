package stores

import (
	"cmp"
	"fmt"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// StateChecks returns the lines about problems of the state file.
func (s *Stores) StateChecks() []v1.Check {
	if err := s.DB.Failing(); err != nil {
		return []v1.Check{{Name: "state", Level: v1.LevelFail, Message: err.Error(), Hint: stateHint(err)}}
	}
	if s.Lost {
		p := s.LostProblem()
		return []v1.Check{{Name: "state", Level: v1.LevelWarn, Message: p.Error(), Hint: p.Hint}}
	}
	return nil
}

// LostProblem describes a state file that is new although an agent ran here before.
func (s *Stores) LostProblem() vip.Problem {
	p := vip.Problem{Place: s.DB.Path(), Message: "missing at the start, although an agent ran here before: created a new one",
		Hint: "leases and registrations are in the fleet's store; connections that were draining are not finished"}
	if s.Tree == nil {
		p.Hint = "services may have got other addresses; to return to the earlier ones, stop the agent, put a backup in its place, start it"
	}
	return p
}

// maxStoreProblems bounds the number of store problems in `ironvip status`.
const maxStoreProblems = 20

// FleetCheck returns the line of `ironvip status` for a store that hosts share. Begun says that the
// agent has its content.
func (s *Stores) FleetCheck(begun bool) v1.Check {
	tree := s.Tree
	at, engine := s.Config.FleetServers(), tree.Engine()
	c := v1.Check{Name: "store", Level: v1.LevelOK, Message: at}
	problems, all := tree.FirstProblems(maxStoreProblems)
	c.Problems, c.More = problems, all-len(problems)
	why, advice, since := tree.StaleSince()
	switch {
	case tree.Duplicate() != nil: // among the problems
		c.Level = v1.LevelFail
		c.Message += " not writable: another host has this host's id or name"
		c.Hint = "traffic goes on; new addresses and registrations wait"
	case !begun && time.Since(since) < WaitingEvery: // as at any start
		c.Level, c.Message, c.Hint = v1.LevelWarn, s.Awaits(), advice
	case !begun:
		c.Level = v1.LevelFail
		c.Message = fmt.Sprintf("waiting for %s for %s: %s", at, time.Since(since).Round(time.Second), why)
		c.Hint = "this host has never read the store, and begins when it answers (" + engine.Look + ") and accepts " + engine.Access
		if advice != "" {
			c.Hint = "this host has never read the store, and begins when it can; " + advice
		}
	case why != "":
		c.Level = v1.LevelWarn
		c.Message += fmt.Sprintf(" away for %s: %s", time.Since(since).Round(time.Second), why)
		c.Hint = "traffic goes on; new addresses and registrations wait until it answers (" + engine.Look + ") and accepts " + engine.Access
		if advice != "" {
			c.Hint = "traffic goes on; new addresses and registrations wait; " + advice
		}
	case all > 0:
		c.Level = v1.LevelWarn
		c.Message += " in touch, " + text.Plural(all, "problem")
	default:
		c.Message += " in touch, " + cmp.Or(tree.Elected(), "nobody") + " is elected"
	}
	return c
}

// Awaits describes what an agent waits for that has not begun.
func (s *Stores) Awaits() string {
	if s.Tree == nil {
		return "the state file is being read"
	}
	return fmt.Sprintf("waiting for %s: %s", s.Config.FleetServers(), cmp.Or(s.Tree.Stale(), "it is being read"))
}
