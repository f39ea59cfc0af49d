package doctor

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/sklookup"
)

// skLookup checks whether the kernel can pass the clients of all VIPs to a few sockets of the userspace
// dataplane, and the right of the process that forwards to ask for that. Without it, the dataplane works with listeners.
func skLookup(h Host, w Want, forwarder *process) []Finding {
	if w.Mode != configs.ModeProxy || w.SkLookup != configs.SkLookupAuto || h.SkLookup == nil {
		return nil
	}
	const without = "each frontend has a listener"
	if forwarder != nil {
		missing, err := lacks(h, forwarder.pid, "CAP_BPF", "CAP_SYS_ADMIN", "CAP_NET_ADMIN")
		if err == nil && (slices.Contains(missing, "CAP_NET_ADMIN") || len(missing) > 1) { // CAP_SYS_ADMIN includes CAP_BPF
			return []Finding{{Warn, "sk_lookup", fmt.Sprintf("%s (pid %d) does not have both CAP_BPF and CAP_NET_ADMIN, which sk_lookup needs: %s", forwarder.name, forwarder.pid, without),
				"add AmbientCapabilities=CAP_BPF CAP_NET_ADMIN, the same CapabilityBoundingSet= and SystemCallFilter=bpf to its unit, or set dataplane.sk_lookup to \"never\""}}
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
