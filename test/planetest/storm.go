//go:build linux

package planetest

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/seed"
	"github.com/ironvip/ironvip/vip"
)

// Storms are random sequences of changes, kills of the agent, and changes of the agent's objects by other programs.
type Storms struct {
	// Count is the number of storms of each run. A run with another seed has other storms.
	Count int
	// Open returns a new agent's dataplane, and the Plane in it.
	Open func(t *testing.T, node *netlab.Node) (reconcile.Plane, *Plane)
	// Draw draws a frontend, at one of a few keys.
	Draw func(*rapid.T) *vip.Frontend
	// Hands are commands that change the agent's objects. They may fail. True means that the command deletes what only the
	// running agent knows.
	Hands map[string]bool
	// Restore, which may be nil, restores what a command has changed of other programs.
	Restore func(t *testing.T, lab *netlab.Lab, hand string)
	// Begin, which may be nil, prepares a lab and returns frontends that stay.
	Begin func(t *testing.T, lab *netlab.Lab) []*vip.Frontend
	// Check, which may be nil, checks the lab after each event, when all is applied.
	Check func(t *testing.T, lab *netlab.Lab, want []vip.Frontend)
	// End checks the lab after the last event.
	End func(t *testing.T, lab *netlab.Lab, want []vip.Frontend)
}

// event is one event of a storm.
type event struct {
	what string
	do   func(s *storm)
}

// storm is an agent's loop on a host. The agent may be killed.
type storm struct {
	*Storms
	*Loop
	t     *testing.T
	lab   *netlab.Lab
	agent *mortal
	plane *Plane
	kept  map[vip.FrontendKey]*vip.Frontend // the wanted frontends, also while no agent runs
	stays []*vip.Frontend
}

// Run runs the storms in labs of their own. After each, the kernel has what the frontends need.
func (o *Storms) Run(t *testing.T) {
	story := rapid.Custom(func(t *rapid.T) []event {
		return rapid.SliceOfN(rapid.Custom(o.draw), 12, 12).Draw(t, "events")
	})
	first := int(seed.Of(t)-1)*o.Count + 1
	for nr := first; nr < first+o.Count; nr++ {
		t.Run(fmt.Sprint(nr), func(t *testing.T) {
			s := &storm{Storms: o, t: t, lab: netlab.New(t), kept: map[vip.FrontendKey]*vip.Frontend{}}
			if o.Begin != nil {
				s.stays = o.Begin(t, s.lab)
			}
			s.begin()
			for _, e := range story.Example(nr) {
				t.Log(e.what)
				e.do(s)
				s.settle()
				s.revive()
				if o.Check != nil {
					s.apply()
					o.Check(t, s.lab, s.All())
				}
				if t.Failed() {
					return
				}
			}
			s.spare()
			s.apply()
			s.plane.Applying.Lock() // a change would have only a part in the kernel
			defer s.plane.Applying.Unlock()
			o.End(t, s.lab, s.All())
		})
	}
}

// begin starts an agent that knows only the wanted frontends.
func (s *storm) begin() {
	s.agent = &mortal{left: never}
	var p reconcile.Plane
	p, s.plane = s.Open(s.t, s.lab.Director)
	s.plane.Faults = s.agent.intercept
	s.Loop = NewLoop(s.t, p, 300*time.Millisecond, slices.AppendSeq(slices.Clone(s.stays), maps.Values(s.kept))...)
}

// settle waits until all wanted frontends have been tried, or the agent is dead.
func (s *storm) settle() {
	s.Wait(func() string {
		if now := s.Stats(); !s.agent.dead() && (!now.Synced || now.AppliedRev < now.DesiredRev) {
			return fmt.Sprintf("not all is tried: %+v", now)
		}
		return ""
	})
}

// apply waits until everything is applied. If the agent dies meanwhile, its successor does it.
func (s *storm) apply() {
	done := false
	for !done {
		s.Wait(func() string {
			why := s.Unapplied()
			if done = why == ""; s.agent.dead() {
				return ""
			}
			return why
		})
		s.revive()
	}
}

// revive starts a new agent if the last one is dead.
func (s *storm) revive() {
	if s.agent.dead() {
		s.t.Log("  and is started again")
		s.Stop()
		s.plane.Close()
		s.begin()
	}
}

// spare cancels a kill, replaces a dead agent, and sets lo up, so that the agent can apply everything.
func (s *storm) spare() {
	s.agent.kill(never, true)
	s.revive()
	s.lab.Director.Run("ip", "link", "set", "lo", "up")
}

func (s *storm) wish(f *vip.Frontend) {
	for k, g := range s.kept {
		if usage.Clash(f, g) {
			s.drop(k)
		}
	}
	s.kept[f.Key] = f
	s.Set(f)
}

func (s *storm) drop(k vip.FrontendKey) {
	delete(s.kept, k)
	s.Delete(k)
}

func (o *Storms) draw(t *rapid.T) event {
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1, 2, 3:
		var all []*vip.Frontend
		var what []string
		for range rapid.IntRange(1, 4).Draw(t, "wishes") {
			f := o.Draw(t)
			all, what = append(all, f), append(what, Brief(f))
		}
		return event{"wish for " + strings.Join(what, "\n    and "), func(s *storm) {
			for _, f := range all {
				s.wish(f)
			}
		}}
	case 4:
		nth := rapid.IntRange(0, 9).Draw(t, "nth")
		return event{fmt.Sprintf("drop the %d. of all", nth), func(s *storm) {
			if all := slices.SortedFunc(maps.Keys(s.kept), vip.CompareFrontendKeys); len(all) > 0 {
				s.drop(all[nth%len(all)])
			}
		}}
	case 5, 6, 7:
		after, done := rapid.IntRange(1, 12).Draw(t, "after"), rapid.Bool().Draw(t, "done")
		return event{fmt.Sprintf("killed at the %d. write, which the kernel has: %v", after, done), func(s *storm) {
			s.agent.kill(after, done)
		}}
	}
	cmd := rapid.SampledFrom(slices.Sorted(maps.Keys(o.Hands))).Draw(t, "command")
	return event{cmd, func(s *storm) {
		if o.Hands[cmd] {
			s.spare()
		}
		args := strings.Fields(cmd)
		s.lab.Director.Do(func() { _ = exec.Command(args[0], args[1:]...).Run() }) // the object may not exist
		if o.Restore != nil {
			o.Restore(s.t, s.lab, cmd)
		}
		if o.Hands[cmd] {
			// Only the running agent knows the content of what was deleted.
			s.apply()
		}
	}}
}

// Brief describes a frontend in one line.
func Brief(f *vip.Frontend) string {
	s := fmt.Sprintf("%s %s %s %v %s %v:", f.Key, f.Scheduler, f.Masquerade, f.Affinity, f.Forward, f.SourceRanges)
	for _, b := range f.Backends {
		s += fmt.Sprintf(" %s*%d", b.Addr, b.Weight)
	}
	return s
}
