//go:build system

package program

import (
	"os"
	"testing"

	"github.com/ironvip/ironvip/test/need"
)

// With IPVS configured on a kernel without it, the agent reports what is missing with a fix, and
// ends. Without a configured mode, it selects nft and reports the reason.
func TestNoIPVS(t *testing.T) {
	parallel(t)
	need.Root(t)
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		t.Log("this kernel has IPVS: TestUnprivilegedAgent has the refusal for want of rights")
		return
	}
	h, _ := newLab(t)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "ipvs"`)
	mentions(t, "ipvs", h.fails(), `dataplane.mode = "ipvs"`, "ip_vs", "fix: ", "hint: ", `"auto"`)
	h.edit("ironvip.toml", `mode = "ipvs"`, `mode = "auto"`)
	h.start()
	mentions(t, "auto", h.ok("dataplane", "show"), "nft", "ip_vs")
	r := h.cli("doctor", "--config", h.dir)
	mentions(t, "doctor", r.stdout, "ip_vs", "the nft dataplane is used")
}
