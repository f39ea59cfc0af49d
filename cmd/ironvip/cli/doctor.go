package cli

import (
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
	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/vip"
)

// doctorDoc is the document of "doctor".
type doctorDoc struct {
	Level    doctor.Level     `json:"level"` // the worst of the findings
	Findings []doctor.Finding `json:"findings"`
	Agent    *v1.NodeStatus   `json:"agent,omitempty"` // if one answers
}

func (a *app) doctorCommand() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "diagnose this host and suggest fixes",
		Long: `Checks this host: the kernel, its settings, conflicting programs, the host's firewall, the MTU
of tunnels, the configuration, the state directory and the agent (at the socket of that
configuration unless --addr names another). If the configuration is invalid, it uses the last good
one, as the agent does. It changes nothing and needs neither an agent nor root; as root, it checks
more. The exit code is 0 if everything is ok, 1 with a FAIL and 3 with a WARN.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := a.examine(cmd.Context(), config)
			if err != nil {
				return err
			}
			err = a.show(doctorView(doc))
			switch {
			case err != nil || doc.Level == doctor.OK:
				return err
			case doc.Level == doctor.Fail:
				return exit(ExitError)
			}
			return exit(ExitDegraded)
		},
	}
	configFlag(cmd, &config, theConfig)
	return cmd
}

func (a *app) examine(ctx context.Context, path string) (doctorDoc, error) {
	validation := status.Validate(ctx, path, "")
	config := validation.Config
	if config == nil {
		config, _ = a.LastGood(path, "") // the validation has the problems
	}
	host := a.Host
	if host == nil {
		this := doctor.ThisHost(config != nil && config.Dataplane.Role == configs.RoleRealServer)
		host = &this
	}
	file, err := filepath.Abs(path)
	if err != nil {
		return doctorDoc{}, err
	}
	want := doctor.Want{Config: file, Mode: configs.ModeAuto, StateDir: configs.DefaultStateDir, Device: configs.DefaultDevice}
	if c := config; c != nil {
		want.Mode, want.StateDir, want.Device = c.Dataplane.Mode, c.Node.StateDir, c.Dataplane.Device
		if c.Dataplane.Role == configs.RoleRealServer {
			want.Mode, want.RealServer = configs.ModeIPVS, true // the agent has nothing to fall back to
		}
		want.Announce = announceWant(c)
		want.DNS.Domain = c.DNS.Domain
		for _, l := range c.DNS.Listen {
			want.DNS.Listen = append(want.DNS.Listen, l.AddrPort)
		}
		want.DNS.Resolved = c.ResolvedSettings()
		for _, p := range c.Pools {
			want.Pools, want.Excluded = append(want.Pools, p.CIDRs...), append(want.Excluded, p.Exclude...)
		}
	}
	if config != nil && config.API.Socket != "" && a.namedAddr() == "" {
		a.addr = "unix://" + config.API.Socket // the agent of this configuration
	}
	c, err := a.client()
	if err != nil {
		return doctorDoc{}, err
	}
	defer c.Close()
	now, err := c.Status(ctx)
	if err == nil {
		want.Tunnels = tunnelsOf(ctx, c)
	}
	doc := doctorDoc{Findings: doctor.Examine(*host, want)}
	doc.Findings = append(doc.Findings, aboutConfig(path, validation, config)...)
	if err != nil {
		doc.Findings = append(doc.Findings, noAgent(err))
	} else {
		doc.Agent = &now
		now.Checks = current(now.Checks, doc.Findings)
		doc.Findings = append(doc.Findings, fromStatus(now)...)
	}
	doc.Level = doctor.Worst(doc.Findings)
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
func announceWant(c *configs.Config) (out doctor.Announce) {
	for i := range c.Pools {
		if m := c.AnnounceMode(&c.Pools[i]); m != announce.Off && !slices.Contains(out.Modes, m.String()) {
			out.Modes = append(out.Modes, m.String())
		}
	}
	if c.Announces(announce.L2) {
		out.Interfaces = c.Announce.Interfaces
	}
	return out
}

// aboutConfig returns the findings about the configuration at path. The other findings are about inEffect: without a valid
// configuration the agent's last good one or, as nil, the defaults.
func aboutConfig(path string, v status.Validation, inEffect *configs.Config) (out []doctor.Finding) {
	add := func(level doctor.Level, text, fix string) {
		out = append(out, doctor.Finding{Level: level, Check: "config", Text: text, Fix: fix})
	}
	others := ": the other lines are about the last good one"
	if inEffect == nil {
		others = ": the other lines are about the defaults"
	}
	switch {
	case v.Missing:
		add(doctor.Warn, "configuration "+path+" not found"+others, "write "+path+"/"+configs.ConfigName+" with a [[pool]], or use --config")
		return out
	case v.Config == nil:
		add(doctor.Fail, "configuration "+path+" can't be used"+others, "correct what the next lines name, then run ironvip doctor again")
	case len(v.Problems)+len(v.Warnings) == 0:
		add(doctor.OK, "config "+path+": "+v.Summary, "")
	}
	for _, p := range v.Warnings {
		add(doctor.Warn, p.Error(), p.Hint)
	}
	for _, p := range v.Problems {
		add(doctor.Fail, p.Error(), p.Hint)
	}
	return out
}

// current returns the checks of the agent without what it has found of the firewall up to a minute ago, if nothing of
// it is there now.
func current(checks []v1.Check, found []doctor.Finding) []v1.Check {
	if !slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Check == "firewall" && f.Level == doctor.OK }) {
		return checks
	}
	return slices.DeleteFunc(slices.Clone(checks), func(c v1.Check) bool { return c.Name == "firewall" })
}

// noAgent returns the finding for an agent that doesn't answer.
func noAgent(err error) doctor.Finding {
	f := doctor.Finding{Level: doctor.Warn, Check: "agent", Text: err.Error(), Fix: "systemctl start ironvip; if it fails, journalctl -u ironvip says why"}
	if client.IsCode(err, client.CodeNotPermitted) {
		f.Fix = "run ironvip doctor as root"
	}
	f.Text, _, _ = strings.Cut(f.Text, "\n")
	return f
}

// fromStatus converts an agent's own checks to findings.
func fromStatus(s v1.NodeStatus) []doctor.Finding {
	out := []doctor.Finding{{Level: doctor.OK, Check: "agent", Text: "agent on " + s.Node + " answers, version " + s.Version}}
	if !s.Ready {
		out[0] = doctor.Finding{Level: doctor.Warn, Check: "agent", Text: "agent on " + s.Node + " answers but is not ready yet", Fix: "ironvip status --wait"}
	}
	for _, c := range s.Checks {
		add := func(text, fix string) {
			out = append(out, doctor.Finding{Level: doctor.Level(c.Level), Check: "agent_" + c.Name, Text: c.Name + ": " + text, Fix: fix})
		}
		add(c.Message, c.Hint)
		for _, p := range furtherProblems(c) {
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
		if f.Level != doctor.OK {
			view.Names = append(view.Names, f.Check)
		}
	}
	return view
}

// findingWord returns the word before a finding. OK is in lower case, so that the other levels
// stand out even without colors.
func findingWord(p *output.Printer, l doctor.Level) string {
	if l == doctor.OK {
		return p.Paint("ok  ", output.Good)
	}
	return levelWord(p, string(l))
}
