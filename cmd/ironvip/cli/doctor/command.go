package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/vip"
)

// doctorDoc is the document of "doctor".
type doctorDoc struct {
	Level    Level          `json:"level"` // the worst of the findings
	Findings []Finding      `json:"findings"`
	Agent    *v1.NodeStatus `json:"agent,omitempty"` // if one answers
}

// Command returns the command "doctor". It examines a host, or if that is nil this one. lastGood is configs.LoadOrLastGood.
func Command(a *command.App, host *Host, lastGood func(config, stateDir string) (*configs.Config, []vip.Problem)) *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "diagnose this host and suggest fixes",
		Long: `Checks the kernel and its settings, conflicting programs, the host's firewall, the MTU of tunnels,
the configuration (an invalid one: the last good one), the state directory and the agent. It changes
nothing and needs no agent; as root, it checks more. The exit code is 1 with a FAIL, else 3 with a
WARN.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := examine(cmd.Context(), a, host, lastGood, config)
			if err != nil {
				return err
			}
			return cmp.Or(a.Show(doctorView(doc)), command.ExitIf(doc.Level == Fail, command.ExitError), command.ExitIf(doc.Level == Warn, command.ExitDegraded))
		},
	}
	command.ConfigFlag(cmd, &config, command.TheConfig)
	return cmd
}

func examine(ctx context.Context, a *command.App, host *Host, lastGood func(string, string) (*configs.Config, []vip.Problem), path string) (doctorDoc, error) {
	validation := status.Validate(ctx, path, "")
	config := validation.Config
	if config == nil {
		config, _ = lastGood(path, "") // the validation has the problems
	}
	if host == nil {
		this := ThisHost(config != nil && config.Dataplane.Role == configs.RoleRealServer)
		host = &this
	}
	file, err := filepath.Abs(path)
	if err != nil {
		return doctorDoc{}, err
	}
	want := Want{Config: file, Mode: configs.ModeAuto, StateDir: configs.DefaultStateDir, Device: configs.DefaultDevice}
	if c := config; c != nil {
		want.Mode, want.StateDir, want.Device = c.Dataplane.Mode, c.Node.StateDir, c.Dataplane.Device
		want.Connect = c.Dataplane.Connect
		if c.Dataplane.Role == configs.RoleRealServer {
			want.Mode, want.RealServer = configs.ModeIPVS, true // the agent has nothing to fall back to
		}
		want.Announce = announceWant(c)
		want.DNS.Domain = c.DNS.Domain
		want.DNS.Resolved = c.ResolvedSettings()
		for _, p := range c.Pools {
			want.Pools, want.Excluded = append(want.Pools, p.CIDRs...), append(want.Excluded, p.Exclude...)
		}
	}
	if config != nil && config.API.Socket != "" && a.NamedAddr() == "" {
		a.Addr = "unix://" + config.API.Socket // the agent of this configuration
	}
	c, err := a.Client()
	if err != nil {
		return doctorDoc{}, err
	}
	defer c.Close()
	now, err := c.Status(ctx)
	if err == nil {
		want.Tunnels = tunnelsOf(ctx, c)
	}
	doc := doctorDoc{Findings: Examine(*host, want)}
	doc.Findings = append(doc.Findings, aboutConfig(path, validation, config)...)
	if err != nil {
		doc.Findings = append(doc.Findings, noAgent(err))
	} else {
		doc.Agent = &now
		now.Checks = current(now.Checks, doc.Findings)
		doc.Findings = append(doc.Findings, fromStatus(now)...)
	}
	doc.Level = Worst(doc.Findings)
	return doc, nil
}

// tunnelsOf returns the backends that the agent reaches through tunnels, as far as the agent says.
func tunnelsOf(ctx context.Context, c *client.Client) (out []netip.Addr) {
	frontends, _ := c.Frontends(ctx, "")
	seen := map[netip.Addr]bool{}
	for _, f := range frontends.Items {
		if f.Forward != vip.ForwardTunnel.String() || f.Kind == vip.OnRealServer.String() {
			continue
		}
		for _, b := range f.Backends {
			if addr, _, err := vip.ParseBackendID(b.Address); err == nil && !seen[addr] {
				seen[addr] = true
				out = append(out, addr)
			}
		}
	}
	return out
}

// announceWant returns what the configuration needs for announcing VIPs.
func announceWant(c *configs.Config) Announce {
	out := Announce{Interfaces: map[string]string{}}
	for i := range c.Pools {
		p := &c.Pools[i]
		m := c.AnnounceMode(p)
		if m != announce.Off && !slices.Contains(out.Modes, m.String()) {
			out.Modes = append(out.Modes, m.String())
		}
		key, names := "announce_interfaces of pool "+p.Name, p.Interfaces
		if len(names) == 0 {
			key, names = "announce.interfaces", c.Announce.Interfaces
		}
		for _, name := range names {
			if m == announce.L2 {
				out.Interfaces[name] = key
			}
		}
	}
	return out
}

// aboutConfig returns the findings about the configuration at path. The other findings are about inEffect: without a valid
// configuration the agent's last good one or, as nil, the defaults.
func aboutConfig(path string, v status.Validation, inEffect *configs.Config) (out []Finding) {
	add := func(level Level, text, fix string) {
		out = append(out, Finding{Level: level, Check: "config", Text: text, Fix: fix})
	}
	others := ": the other lines are about the last good one"
	if inEffect == nil {
		others = ": the other lines are about the defaults"
	}
	switch {
	case v.Missing:
		add(Warn, "configuration "+path+" not found"+others, "write "+path+"/"+configs.ConfigName+" with a [[pool]], or use --config")
		return out
	case v.Config == nil:
		add(Fail, "configuration "+path+" can't be used"+others, "correct what the next lines name, then run ironvip doctor again")
	case len(v.Problems)+len(v.Warnings) == 0:
		add(OK, "config "+path+": "+v.Summary, "")
	}
	for _, p := range v.Warnings {
		add(Warn, p.Error(), p.Hint)
	}
	for _, p := range v.Problems {
		add(Fail, p.Error(), p.Hint)
	}
	return out
}

// current returns the checks of the agent without what it has found of the firewall up to a minute ago, if nothing of
// it is there now.
func current(checks []v1.Check, found []Finding) []v1.Check {
	if !slices.ContainsFunc(found, func(f Finding) bool { return f.Check == "firewall" && f.Level == OK }) {
		return checks
	}
	return slices.DeleteFunc(slices.Clone(checks), func(c v1.Check) bool { return c.Name == "firewall" })
}

// noAgent returns the finding for an agent that doesn't answer.
func noAgent(err error) Finding {
	f := Finding{Level: Warn, Check: "agent", Text: err.Error(), Fix: "systemctl start ironvip; if it fails, journalctl -u ironvip says why"}
	if client.IsCode(err, client.CodeNotPermitted) {
		f.Fix = "run ironvip doctor as root"
	}
	f.Text, _, _ = strings.Cut(f.Text, "\n")
	return f
}

// fromStatus converts an agent's own checks to findings.
func fromStatus(s v1.NodeStatus) []Finding {
	out := []Finding{{Level: OK, Check: "agent", Text: "agent on " + s.Node + " answers, version " + s.Version}}
	if !s.Ready {
		out[0] = Finding{Level: Warn, Check: "agent", Text: "agent on " + s.Node + " answers but is not ready yet", Fix: "ironvip status --wait"}
	}
	for _, c := range s.Checks {
		add := func(text, fix string) {
			out = append(out, Finding{Level: Level(c.Level), Check: "agent_" + c.Name, Text: c.Name + ": " + text, Fix: fix})
		}
		add(c.Message, c.Hint)
		for _, p := range render.FurtherProblems(c) {
			add(p.Error(), p.Hint)
		}
		if c.More > 0 {
			add(fmt.Sprintf("and %d more", c.More), "")
		}
	}
	return out
}

func doctorView(doc doctorDoc) output.View {
	view := output.View{Data: doc, Text: func(p *output.Printer) string {
		var b strings.Builder
		for _, f := range doc.Findings {
			b.WriteString(findingWord(p, f.Level) + "  " + output.Clean(output.Join("    fix: ", f.Text, f.Fix)) + "\n")
		}
		return b.String()
	}}
	for _, f := range doc.Findings {
		if f.Level != OK {
			view.Names = append(view.Names, f.Check)
		}
	}
	return view
}

// findingWord returns the word before a finding. OK is in lower case, so that the other levels
// stand out even without colors.
func findingWord(p *output.Printer, l Level) string {
	if l == OK {
		return p.Paint("ok  ", output.Good)
	}
	return render.LevelWord(p, string(l))
}
