//go:build vm

package connect

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// The kernel's lockdown, which Secure Boot switches on, forbids BPF programs that read the kernel's memory or write that of
// programs: not those of this package. It can't be switched off, so this test needs a VM.
func TestLockdown(t *testing.T) {
	l := newLab(t)
	must.Succeed(t, unix.Mount("securityfs", "/sys/kernel/security", "securityfs", 0, ""))
	for _, level := range []string{"integrity", "confidentiality"} {
		must.Succeed(t, os.WriteFile("/sys/kernel/security/lockdown", []byte(level), 0))
		l.Plane.Close()
		l.Plane = l.opened()
		clear(l.have)
		l.set(l.frontend("192.0.2.1:80", vip.TCP, 0))
		expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), first, "%s", level)
	}
}
