package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// After a switch that failed, the dataplane before runs, also if the configuration asks for the new one. Only the wish of an
// operator must not contradict it.
func TestTheWayBackFromASwitch(t *testing.T) {
	for _, back := range []bool{true, false} {
		dir := t.TempDir()
		path := filepath.Join(dir, configs.ConfigName)
		must.Succeed(t, os.WriteFile(path, fmt.Appendf(nil, "[node]\nstate_dir = %q\n[dataplane]\nmode = \"ipvs\"\n", dir+"/state"), 0o600))
		cfg, _ := configs.Load(path)
		m := &move{from: configs.ModeProxy, to: configs.ModeIPVS}
		if m = m.failed(os.ErrPermission); !back {
			m.back = false
		}
		a, err := newAgent(Options{Config: path}, cfg, nil, inheritance{sockets: &sockets.Set{}, proxy: &ownProxy{}, moved: m})
		if !back {
			expect.Contains(t, err.Error(), `dataplane.mode = "ipvs" contradicts the switch to proxy`)
			continue
		}
		must.Succeed(t, err)
		expect.Equal(t, a.plane.about.Mode, configs.ModeProxy)
		checks := a.switchChecks()
		if len(checks) != 1 {
			t.Fatalf("%+v", checks)
		}
		expect.Contains(t, checks[0].Message, "ipvs could not run 0s ago, so proxy goes on: permission denied")
		expect.Succeed(t, a.close())
		if a.proxy.Server != nil {
			expect.Succeed(t, a.proxy.Close())
		}
	}
}
