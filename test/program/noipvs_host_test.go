//go:build system

package program

import (
	"os"
	"testing"

	"github.com/ironvip/ironvip/test/need"
)

// Asked for IPVS on a kernel without it, the agent says what is missing and
// what to do, and ends; left to choose, it takes the proxy and says why.
func TestNoIPVS(t *testing.T) {
	parallel(t)
	need.Root(t)
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		t.Log("this kernel has IPVS: TestUnprivilegedAgent has the refusal for want of rights")
		return
	}
	h := newHost(t)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "ipvs"`)
	mentions(t, "ipvs", h.fails(), `dataplane.mode = "ipvs"`, "ip_vs", "fix: ", "hint: ", `"auto"`)
	h.edit("ironvip.toml", `mode = "ipvs"`, `mode = "auto"`)
	h.start()
	mentions(t, "auto", h.ok("dataplane", "show"), "proxy", "ip_vs")
	r := h.cli("doctor", "--config", h.dir)
	mentions(t, "doctor", r.stdout, "ip_vs")
}
