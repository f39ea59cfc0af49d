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
// dataplane, and the right of the process that forwards to ask for that. Without it, the dataplane works with listeners.
func skLookup(h Host, w Want, forwarder *process) []Finding {
	if w.Mode != configs.ModeProxy || w.SkLookup != configs.SkLookupAuto || h.SkLookup == nil {
		return nil
	}
	const without = "each frontend has a listener"
	if forwarder != nil {
		status, err := fs.ReadFile(h.Files, path.Join("proc", strconv.Itoa(forwarder.pid), "status"))
		if has := effectiveCapabilities(string(status)); err == nil && (has&(1<<unix.CAP_BPF|1<<unix.CAP_SYS_ADMIN) == 0 || has&(1<<unix.CAP_NET_ADMIN) == 0) {
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
