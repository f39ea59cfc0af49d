//go:build system

package announce

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce/remains"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// remains returns what an announcer has in the host's kernel.
func (h *host) remains() (found remains.Remains, err error) {
	h.Do(func() { found, err = remains.Find(h.t.Context(), filepath.Join(h.dir, "control.sock")) })
	return found, err
}

// awaitRemains waits until the host has, or has not, what belongs to an announcer at layer 2.
func (h *host) awaitRemains(what string, want bool) {
	h.t.Helper()
	wait.For(h.t, what, func() error {
		found, err := h.remains()
		var arp []byte
		h.Do(func() { arp, _ = os.ReadFile("/proc/sys/net/ipv4/conf/eth0/arp_announce") })
		if polite := strings.TrimSpace(string(arp)) == "2"; err == nil && (len(found.Tables) == 2 != want || found.None() == want || polite != want) {
			err = fmt.Errorf("%+v, arp_announce %s", found, arp)
		}
		return err
	})
}

// Announcing ends for good in any order of the steps: nothing of it remains in the kernel, so the host
// answers for its VIPs again.
func TestAnnouncingIsSwitchedOff(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 1)
	h := l.hosts[0]
	must := func(err error) {
		t.Helper()
		must.Succeed(t, err)
	}
	config := func(mode string) {
		t.Helper()
		h.configure(services(serviceCount, l.backends), l.config(h, mode, l.peers()))
	}
	reload := func() { h.must("reload") }
	restart := func() {
		t.Helper()
		must(h.agent.Stop())
		must(h.agent.Start())
	}
	stop := func() {
		t.Helper()
		must(h.announcer.Stop())
		h.awaitRemains("the gate of a stopped announcer", true)
	}
	config("l2")
	h.start()
	for _, c := range []struct {
		name  string
		steps []func()
	}{
		{"reload", []func(){func() { config("off") }, reload}},
		{"restart of the agent", []func(){func() { config("off") }, restart}},
		{"announcer stopped, then reload", []func(){stop, func() { config("off") }, reload}},
		{"announcer stopped, then restart of the agent", []func(){stop, func() { config("off") }, restart}},
		{"agent killed, then announcer stopped, then a new agent", []func(){h.agent.Kill, stop, func() { config("off"); must(h.agent.Start()) }}},
	} {
		h.awaitAll()
		h.awaitRemains(c.name+": announcing", true)
		for _, step := range c.steps {
			step()
		}
		h.awaitRemains(c.name, false)
		if !h.announcer.Running() {
			h.startAnnouncer()
		}
		config("l2")
		reload()
	}

	// Without both processes, the command does it.
	h.awaitAll()
	clean := func(args ...string) string {
		t.Helper()
		log := filepath.Join(h.dir, "clean.log")
		_ = os.Remove(log)
		p := process.New(need.Binary(t), log, h.Node, append([]string{"dataplane", "clean", "--config", h.dir}, args...)...)
		must(p.Start())
		wait.Until(t, "the end of the command", func() bool { return !p.Running() })
		return p.LogEnd(5000)
	}
	must(h.agent.Stop())
	expect.Contains(t, clean(), "an announcer runs", "while an announcer runs")
	stop()
	for _, want := range []string{"arp ironvip_l2", "netdev ironvip_l2", "arp_announce of eth0"} {
		expect.Contains(t, clean("--dry-run"), want)
	}
	h.awaitRemains("nothing was changed", true)
	clean()
	h.awaitRemains("cleaned", false)
}
