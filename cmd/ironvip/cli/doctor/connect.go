package doctor

import (
	"strings"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/bpf"
	"github.com/ironvip/ironvip/plane/kernel/linux"
)

// connecting checks what dataplane.connect needs, if the configuration has it. "auto" is content without.
func connecting(h Host, w Want, agent *process) (out []Finding) {
	if w.Connect == "" || w.Connect == configs.ConnectOff || w.RealServer {
		return nil
	}
	const check = "connect"
	level := Warn
	if w.Connect == configs.ConnectOn {
		level = Fail
	}
	var met []string
	lack := func(text, fix string) {
		out = append(out, Finding{level, check, "dataplane.connect can't work: " + text, fix + `, or set dataplane.connect to "off"`})
	}
	first := "Linux " + linux.NetnsCookie.First()
	if release, _ := line(h, "proc/sys/kernel/osrelease"); linux.NetnsCookie.In(release) {
		met = append(met, first)
	} else {
		lack("kernel "+release+" is too old", "run "+first+" or later")
	}
	if h.Cgroup == nil || h.Cgroup() == nil {
		met = append(met, "cgroup2")
	} else {
		const other = "/sys/fs/cgroup/unified"
		lack(h.Cgroup().Error(), "mkdir -p "+other+" && mount -t cgroup2 none "+other)
	}
	if h.BPF != nil && h.BPF() != nil {
		lack(h.BPF().Error(), bpf.MissingHint)
	}
	if agent != nil {
		needs := []string{"CAP_BPF", "CAP_NET_ADMIN"}
		if f := capabilitiesOf(h, agent.pid, check, "agent", "has", level, needs...); f.Level == OK {
			met = append(met, needs...)
		} else {
			f.Fix = bpf.RightsHint
			out = append(out, f)
		}
	}
	if len(out) == 0 {
		out = append(out, Finding{OK, check, check + ": " + strings.Join(met, ", "), ""})
	}
	return out
}
