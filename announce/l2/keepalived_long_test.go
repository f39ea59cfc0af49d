//go:build linux && long

package l2_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// keepalived on another host holds the same addresses.
func TestKeepalivedHoldsTheAddress(t *testing.T) {
	program := need.Program(t, "keepalived")
	l, a := pair(t)
	rival := l.Join("rival")
	stop := keepalived(t, rival, program)
	l.watch.answered("keepalived", vips, rival.MAC("eth0"))
	a.own(vips...)
	a.conflict(0, rival.MAC("eth0"), vips...)
	l.watch.answered("conflict with keepalived", vips, rival.MAC("eth0"))
	stop()
	a.is(l2.Announced, vips...)
	l.watch.answered("keepalived has ended", vips, a.mac)
}

// keepalived starts keepalived on a node, alone in its group and thus the master. Stop ends it.
func keepalived(t *testing.T, n *netlab.Node, program string) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "keepalived.conf")
	instance := `vrrp_instance %s { state MASTER
 interface eth0
 virtual_router_id %d
 priority 100
 advert_int 1
 virtual_ipaddress { %s } }
`
	text := fmt.Sprintf(instance, "v4", 51, vip4.String()+"/24") + fmt.Sprintf(instance, "v6", 52, "fe80::51\n"+vip6.String()+"/64")
	must.Succeed(t, os.WriteFile(config, []byte(text), 0o600))
	cmd := exec.Command(program, "--dont-fork", "--log-console", "--vrrp", "--use-file", config,
		"--pid", filepath.Join(dir, "pid"), "--vrrp_pid", filepath.Join(dir, "vrrp.pid"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	var err error
	n.Do(func() { err = cmd.Start() })
	must.Succeed(t, err)
	done := false
	stop = func() {
		if done {
			return
		}
		done = true
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("keepalived: %s", output.String())
		}
	}
	t.Cleanup(stop)
	return stop
}
