//go:build vm && long

package systemd

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// switches moves the host of a running unit from IPVS to nft, back, and to the userspace proxy, each time as the plan
// says. A restart runs the dataplane that the configuration names by then.
func (h *host) switches() {
	h.t.Helper()
	h.configure("auto")
	ofIPVS := h.connect()
	asking := h.ask()
	asking.pause.Store(int64(100 * time.Millisecond)) // often enough for a gap, and few enough for the new processes
	h.switchTo("nft", v1.SwitchContinues)
	h.open("with nft", ofIPVS)
	ofNFT := h.connect()
	h.switchTo("ipvs", v1.SwitchContinues)
	h.open("back with IPVS", ofIPVS, ofNFT)
	asking.end()
	h.switchTo("proxy", v1.SwitchEnds)
	if a, err := ofIPVS.Ask(); err == nil {
		h.t.Errorf("a connection of IPVS is answered by %s with the proxy", a.Name)
	}
	h.open("with the proxy", ofNFT)
	h.served()

	h.configure("ipvs")
	if out, err := command("ironvip", "dataplane", "switch", "proxy"); exitCode(err) != 1 || !strings.Contains(out, `dataplane.mode = "ipvs" contradicts: the next start runs that`) {
		h.t.Errorf("the proxy although the configuration names IPVS: %v\n%s", err, out)
	}
	old := h.pid()
	run(h.t, "systemctl", "restart", "ironvip")
	h.alone("ipvs", old)
	h.served()
}

// switchTo moves the host to another dataplane, and checks the plan, that the new process is the unit's, and that the old
// one has ended. Then is what happens to open connections.
func (h *host) switchTo(mode, then string) {
	h.t.Helper()
	var plan v1.SwitchPlan
	wait.For(h.t, "a plan to move to "+mode, func() (err error) {
		if plan, err = h.agent.Switch(h.t.Context(), mode, false, true); err == nil && len(plan.Connections) == 0 {
			err = fmt.Errorf("no connections: %+v", plan)
		}
		return err
	})
	ok := plan.Changes && plan.To == mode && len(plan.Problems)+len(plan.Refused) == 0
	for _, c := range plan.Connections {
		ok = ok && c.Then == then
	}
	if !ok {
		h.t.Errorf("the plan to move to %s: %+v", mode, plan)
	}
	old := h.pid()
	run(h.t, "ironvip", "dataplane", "switch", mode)
	h.alone(mode, old)
}

// alone waits until the unit's main process is another one than old, and the only agent, with this dataplane.
func (h *host) alone(mode, old string) {
	h.t.Helper()
	wait.For(h.t, "a new main process, with "+mode, func() error {
		agents, _ := commandOut("pgrep", "--exact", "ironvip")
		if now := h.pid(); now == old || strings.TrimSpace(agents) != now {
			return fmt.Errorf("the main process is %s after %s, and these run: %q", now, old, agents)
		}
		if now, err := h.agent.Dataplane(h.t.Context()); err != nil || now.Mode != mode || !now.Ready {
			return fmt.Errorf("%v: %+v", err, now)
		}
		return nil
	})
	h.unit("active", "enabled")
}

// open checks that connections are open.
func (h *host) open(when string, connections ...*netlab.Conn) {
	h.t.Helper()
	for i, c := range connections {
		if _, err := c.Ask(); err != nil {
			h.t.Errorf("%s, connection %d: %v", when, i, err)
		}
	}
}

func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}
