package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/sklookup"
)

// skLookup checks whether the kernel can pass the clients of all VIPs to a few sockets of the userspace
// dataplane, and the agent's right to ask for that. Without it, the dataplane works with listeners.
func skLookup(h Host, w Want, agent *process) []Finding {
	if w.Mode != configs.ModeProxy || w.SkLookup != configs.SkLookupAuto || h.SkLookup == nil {
		return nil
	}
	const without = "each frontend has a listener"
	if agent != nil {
		status, err := fs.ReadFile(h.Files, path.Join("proc", strconv.Itoa(agent.pid), "status"))
		if err == nil && effectiveCapabilities(string(status))&(1<<unix.CAP_BPF|1<<unix.CAP_SYS_ADMIN) == 0 {
			return []Finding{{Warn, "sk_lookup", fmt.Sprintf("agent (pid %d) has no CAP_BPF, which sk_lookup needs: %s", agent.pid, without),
				"add AmbientCapabilities=CAP_BPF, CapabilityBoundingSet=CAP_BPF and SystemCallFilter=bpf to its unit, or set dataplane.sk_lookup to \"never\""}}
		}
	}
	err := h.SkLookup()
	refused, _ := errors.AsType[*sklookup.RefusedError](err)
	switch {
	case err == nil:
		return []Finding{{OK, "sk_lookup", "sk_lookup: one socket for each protocol and family listens for all VIPs", ""}}
	case errors.Is(err, unix.EPERM):
		return []Finding{{OK, "sk_lookup", "sk_lookup can't be checked: " + err.Error(), "run ironvip doctor as root"}}
	case refused != nil:
		return []Finding{{Warn, "sk_lookup", "sk_lookup can't work here, so " + without + ": " + refused.Reason, refused.Hint}}
	}
	return []Finding{{Warn, "sk_lookup", "sk_lookup can't work here, so " + without + ": " + err.Error(), ""}}
}
