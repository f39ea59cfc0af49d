//go:build system && long

package announce

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/process"
)

// Two announcers have 10,000 VIPs. Memory is bounded, and when one is killed, the other one takes its
// 5,000 VIPs over.
func TestTenThousandVIPs(t *testing.T) {
	p := startPairOfMany(t)
	pid := p.announcers[1].Pid()
	time.Sleep(8 * time.Second) // the first announcements are repeated for 3.5 s
	before, began := process.CPUTime(t, pid), time.Now()
	time.Sleep(5 * time.Second)
	share := float64(process.CPUTime(t, pid)-before) / float64(time.Since(began))
	resident := residentMemory(t, pid)
	took := p.failover(t)
	all := residentMemory(t, pid)
	t.Logf("%s with half of the VIPs, %s with all; %.1f %% of a core, takeover of %d VIPs after %s", resident, all, 100*share, manyVIPs/2, took)
	// It is about 26,000 with all VIPs. On a busy machine, all VIPs are decided again and again.
	for _, r := range []memory{resident, all} {
		expect.AtMost(t, r.anonymous+r.file, 40_000, "kB: %s", r)
	}
}

// memory is the resident memory of a process, in kB: its own, and the mapped pages of the program.
type memory struct{ anonymous, file int }

func (r memory) String() string {
	return fmt.Sprintf("%d kB (%d anonymous, %d of files)", r.anonymous+r.file, r.anonymous, r.file)
}

func residentMemory(t testing.TB, pid int) (r memory) {
	t.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch f[0] { // the kernel's kB has 1024 bytes
		case "RssAnon:":
			r.anonymous, _ = strconv.Atoi(f[1])
		case "RssFile:":
			r.file, _ = strconv.Atoi(f[1])
		}
	}
	r.anonymous, r.file = r.anonymous*1024/1000, r.file*1024/1000
	return r
}
