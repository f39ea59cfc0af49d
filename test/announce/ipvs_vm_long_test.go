//go:build vm && long

package announce

import (
	"testing"
	"time"
)

// With IPVS, an agent that hangs changes no announcement and loses no request.
func TestAgentHangsWithIPVS(t *testing.T) {
	l := newLab(t, 2, slow)
	a := l.hosts[0]
	owners := l.settled()
	l.unnoticed(owners, func() {
		a.pause(a.agent)
		time.Sleep(8 * time.Second) // longer than keepalives may be missing, and the userspace proxy is given
		a.resume(a.agent)
		l.awaitThese(owners)
	})
}
