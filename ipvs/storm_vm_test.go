//go:build linux && vm

package ipvs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// The storms are the same in each run, so that a commit's result doesn't depend on chance. To
// search for faults, run others: -storms 50 -first-storm 1000.
var (
	storms     = flag.Int("storms", 5, "how many storms TestStormOnKernel has")
	firstStorm = flag.Int("first-storm", 1, "the number of the first of them")
)

// stormy is one event of a storm on a real kernel.
type stormy struct {
	what string
	do   func(s *stormLab)
}

// stormLab is an agent's loop on a host. The agent may be killed.
type stormLab struct {
	*loop
	node  *netlab.Node
	agent *mortal
	kept  map[vip.FrontendKey]*vip.Frontend // the wanted frontends, also while no agent runs
}

// mortal is the state of an agent that is killed at a write to the kernel.
type mortal struct {
	left int  // number of writes until then
	done bool // the last write reaches the kernel, but its answer doesn't reach the agent
}

var errKilled = errors.New("the agent is no more")

// never is more writes than a storm has.
const never = 1 << 40

func (m *mortal) dead() bool { return m.left <= 0 }

// spend counts n writes. It returns how many of them reach the kernel.
func (m *mortal) spend(n int) (may int) {
	if m.dead() {
		return 0
	}
	may = min(n, m.left)
	if m.left -= n; m.dead() && !m.done {
		may--
	}
	return may
}

type mortalSocket struct {
	netlink.Socket
	agent *mortal
}

func (s *mortalSocket) Write(ctx context.Context, n int, put func([]byte, int) []byte, done func(int, error)) error {
	if n == 0 {
		return nil
	}
	may := s.agent.spend(n)
	if !s.agent.dead() {
		return s.Socket.Write(ctx, n, put, done)
	}
	if may > 0 {
		if err := s.Socket.Write(ctx, may, put, func(int, error) {}); err != nil {
			return err
		}
	}
	return errKilled
}

type mortalFilters struct {
	filters
	agent *mortal
}

// mortally carries out a transaction. For an agent that is killed at it, it may do so without the
// answer, or not at all.
func (f *mortalFilters) mortally(transaction func() error) error {
	may := f.agent.spend(1)
	if !f.agent.dead() {
		return transaction()
	}
	if may > 0 {
		_ = transaction()
	}
	return errKilled
}

func (f *mortalFilters) Apply(ctx context.Context, c filter.Change) error {
	return f.mortally(func() error { return f.filters.Apply(ctx, c) })
}

func (f *mortalFilters) SetPods(ctx context.Context, pods *netipx.IPSet, c filter.Change) error {
	return f.mortally(func() error { return f.filters.SetPods(ctx, pods, c) })
}

func (f *mortalFilters) Rebuild(ctx context.Context, pods *netipx.IPSet, c filter.Change) error {
	return f.mortally(func() error { return f.filters.Rebuild(ctx, pods, c) })
}

// begin starts an agent that knows only the wanted frontends.
func (s *stormLab) begin(t *testing.T) {
	s.agent = &mortal{left: never}
	p := newPlane(t, s.node)
	p.kernel.Socket = &mortalSocket{p.kernel.Socket, s.agent}
	p.device.Conn = &mortalSocket{p.device.Conn, s.agent}
	p.fw = &mortalFilters{p.fw, s.agent}
	s.loop = newLoop(t, p, 300*time.Millisecond)
	for _, f := range s.kept {
		s.set(f)
	}
}

// settle waits until all wanted frontends have been tried, or the agent is dead.
func (s *stormLab) settle() {
	s.wait(func() string {
		if now := s.r.Stats(); !s.killed() && (!now.Synced || now.AppliedRev < now.DesiredRev) {
			return fmt.Sprintf("not all is tried: %+v", now)
		}
		return ""
	})
}

func (s *stormLab) killed() bool {
	s.applying.Lock()
	defer s.applying.Unlock()
	return s.agent.dead()
}

// kill makes the agent die after so many writes.
func (s *stormLab) kill(after int, done bool) {
	s.applying.Lock()
	defer s.applying.Unlock()
	if !s.agent.dead() {
		s.agent.left, s.agent.done = after, done
	}
}

// revive starts a new agent if the last one is dead.
func (s *stormLab) revive() {
	if s.killed() {
		s.t.Log("  and is started again")
		s.stop()
		s.p.Close()
		s.begin(s.t)
	}
}

// spare cancels a kill, replaces a dead agent, and sets lo up, so that the agent can apply
// everything.
func (s *stormLab) spare() {
	s.kill(never, true)
	s.revive()
	run(s.t, s.node, "ip", "link", "set", "lo", "up")
}

func (s *stormLab) wish(f *vip.Frontend) {
	for _, k := range displaced(s.kept, f) {
		s.drop(k)
	}
	s.kept[f.Key] = f
	s.set(f)
}

func (s *stormLab) drop(k vip.FrontendKey) {
	delete(s.kept, k)
	delete(s.want, k)
	s.desired.Delete(k)
}

// unpaused returns a pause that a killed agent has left, or "". The pause expires by itself.
func (s *stormLab) unpaused() string {
	for _, set := range []string{"paused4", "paused6", "marked_paused4", "marked_paused6"} {
		if out := run(s.t, s.node, "nft", "list", "set", "inet", DefaultTable, set); strings.Contains(out, "elements") {
			return "a pause has not ended: " + out
		}
	}
	return ""
}

// foreignHands are other programs' changes of our objects. True means that the command deletes a
// record of what is ours: which node ports, which services by mark.
var foreignHands = map[string]bool{
	"nft flush ruleset": true, "nft delete table inet ironvip": true, "nft flush map inet ironvip ranges4": true, "nft flush map inet ironvip internal4": true,
	"nft flush set inet ironvip nodeports4": true, "nft flush set inet ironvip vips4": false,
	"ipvsadm -C": false, "ipvsadm -D -t 10.96.0.1:80": false, "ipvsadm -D -f 16777216": false, "ipvsadm -E -t 10.96.0.2:80 -s sed": false, "ipvsadm -A -t 10.96.0.3:81 -s rr": false,
	"ip link del ironvip0": false, "ip link set ironvip0 down": false, "ip link set lo down": false,
	"ip addr flush dev ironvip0": false, "ip addr add 10.96.0.1/24 dev ironvip0": false, "ip addr add 10.96.9.9/32 dev ironvip0": false,
}

func drawStormy(t *rapid.T) stormy {
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1, 2, 3:
		var all []*vip.Frontend
		var what []string
		for range rapid.IntRange(1, 4).Draw(t, "wishes") {
			f := drawWish(t)
			all, what = append(all, f), append(what, brief(f))
		}
		return stormy{"wish for " + strings.Join(what, "\n    and "), func(s *stormLab) {
			for _, f := range all {
				s.wish(f)
			}
		}}
	case 4:
		nth := rapid.IntRange(0, 9).Draw(t, "nth")
		return stormy{fmt.Sprintf("drop the %d. of all", nth), func(s *stormLab) {
			if all := slices.SortedFunc(maps.Keys(s.kept), vip.CompareFrontendKeys); len(all) > 0 {
				s.drop(all[nth%len(all)])
			}
		}}
	case 5, 6, 7:
		after, done := rapid.IntRange(1, 12).Draw(t, "after"), rapid.Bool().Draw(t, "done")
		return stormy{fmt.Sprintf("killed at the %d. write, which the kernel has: %v", after, done), func(s *stormLab) {
			s.kill(after, done)
		}}
	}
	cmd := rapid.SampledFrom(slices.Sorted(maps.Keys(foreignHands))).Draw(t, "command")
	return stormy{cmd, func(s *stormLab) {
		if foreignHands[cmd] {
			s.spare()
		}
		args := strings.Fields(cmd)
		s.node.Do(func() { _ = exec.Command(args[0], args[1:]...).Run() }) // the object may not exist
		if foreignHands[cmd] {
			// Only the running agent knows the content of the deleted record.
			s.wait(s.unapplied)
		}
	}}
}

// Frontends change, other programs change our objects, and agents are killed at any write. At the
// end, the kernel has exactly the wanted frontends, as ipvsadm, nft and ip list them.
func TestStormOnKernel(t *testing.T) {
	story := rapid.Custom(func(t *rapid.T) []stormy {
		return rapid.SliceOfN(rapid.Custom(drawStormy), 12, 12).Draw(t, "acts")
	})
	for nr := range *storms {
		t.Run(fmt.Sprint(*firstStorm+nr), func(t *testing.T) {
			s := &stormLab{node: netlab.New(t).Director, kept: map[vip.FrontendKey]*vip.Frontend{}}
			s.begin(t)
			for _, a := range story.Example(*firstStorm + nr) {
				t.Log(a.what)
				a.do(s)
				s.settle()
				s.revive()
			}
			s.spare()
			s.wait(s.unpaused)
			s.waitApplied()
		})
	}
}
