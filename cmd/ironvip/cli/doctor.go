package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/configs"
)

// doctorDoc is the document of "doctor".
type doctorDoc struct {
	Level    doctor.Level     `json:"level"` // the worst of the findings
	Findings []doctor.Finding `json:"findings"`
	Agent    *v1.NodeStatus   `json:"agent,omitempty"` // if one answers
}

func (a *app) doctorCommand() *cobra.Command {
	config := DefaultConfig
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "diagnose this host and suggest fixes",
		Long: `Checks this host: the kernel, its settings, conflicting programs, the configuration, the
state directory and the agent (at the socket of that configuration unless --addr names
another). It changes nothing and needs neither an agent nor root; as root it sees more. The
exit code is 0 if everything is ok, 1 with a FAIL and 3 with a WARN.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := a.examine(cmd.Context(), config)
			if err != nil {
				return err
			}
			if err := a.show(a.doctorView(doc)); err != nil {
				return err
			}
			switch doc.Level {
			case doctor.Fail:
				return exit(ExitError)
			case doctor.Warn:
				return exit(ExitDegraded)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&config, "config", config, "the configuration: a file, or a directory with ironvip.toml")
	must(cmd.MarkFlagFilename("config", "toml"))
	return cmd
}

func (a *app) examine(ctx context.Context, path string) (doctorDoc, error) {
	v := a.validate(path)
	host := a.Host
	if host == nil {
		realServer := v.config != nil && v.config.Dataplane.Role == configs.RoleRealServer
		this := doctor.ThisHost(func() []doctor.Requirement { return ipvsRequirements(realServer) }, ipvsServices)
		host = &this
	}
	file, err := filepath.Abs(path)
	if err != nil {
		return doctorDoc{}, err
	}
	want := doctor.Want{Config: file, Mode: doctor.ModeAuto, StateDir: configs.DefaultStateDir, Device: configs.DefaultDevice}
	if c := v.config; c != nil {
		want.Mode, want.StateDir, want.Device = c.Dataplane.Mode, c.Node.StateDir, c.Dataplane.Device
		if c.Dataplane.Role == configs.RoleRealServer {
			want.Mode = doctor.ModeIPVS // the agent has nothing to fall back to
		}
		for _, p := range c.Pools {
			want.Pools, want.Excluded = append(want.Pools, p.CIDRs...), append(want.Excluded, p.Exclude...)
		}
	}
	doc := doctorDoc{Findings: doctor.Examine(*host, want)}
	doc.Findings = append(doc.Findings, fromConfig(path, v)...)
	if c := v.config; c != nil && c.API.Socket != "" && a.addr == "" && a.Getenv(EnvAddr) == "" {
		a.addr = "unix://" + c.API.Socket // the agent of this configuration
	}
	c, err := a.client()
	if err != nil {
		return doc, err
	}
	defer c.Close()
	status, err := c.Status(ctx)
	if err != nil {
		doc.Findings = append(doc.Findings, noAgent(err))
	} else {
		doc.Agent = &status
		doc.Findings = append(doc.Findings, fromStatus(status)...)
	}
	doc.Level = doctor.Worst(doc.Findings)
	return doc, nil
}

// fromConfig returns the findings about the configuration.
func fromConfig(path string, v validated) []doctor.Finding {
	switch {
	case v.missing:
		return []doctor.Finding{{Level: doctor.Warn, Check: "config", Text: "configuration " + path + " not found: services get no addresses, and no agent starts without the directory",
			Fix: "write " + path + "/" + configs.ConfigName + " with a [[pool]], or use --config"}}
	case len(v.problems) == 0 && v.unread != "":
		return []doctor.Finding{{Level: doctor.Warn, Check: "config", Text: "config " + path + ": " + v.summary + "; " + v.unread + " ignored: no static source configured", Fix: readServices}}
	case len(v.problems) == 0:
		return []doctor.Finding{{Level: doctor.OK, Check: "config", Text: "config " + path + ": " + v.summary}}
	}
	var out []doctor.Finding
	for _, p := range v.problems {
		out = append(out, doctor.Finding{Level: doctor.Fail, Check: "config", Text: p.Error(), Fix: p.Hint})
	}
	return out
}

// noAgent returns the finding for an agent that doesn't answer.
func noAgent(err error) doctor.Finding {
	f := doctor.Finding{Level: doctor.Warn, Check: "agent", Text: err.Error(), Fix: "systemctl start ironvip"}
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
		out = append(out, doctor.Finding{Level: doctor.Level(c.Level), Check: "agent_" + c.Name, Text: c.Name + ": " + c.Message, Fix: c.Hint})
		for _, p := range c.Problems {
			out = append(out, doctor.Finding{Level: doctor.Level(c.Level), Check: "agent_" + c.Name, Text: c.Name + ": " + p.String(), Fix: p.Hint})
		}
		if c.More > 0 {
			out = append(out, doctor.Finding{Level: doctor.Level(c.Level), Check: "agent_" + c.Name, Text: fmt.Sprintf("%s: and %d more", c.Name, c.More)})
		}
	}
	return out
}

func (a *app) doctorView(doc doctorDoc) output.View {
	return output.View{
		Data: doc,
		Names: func() []string {
			var names []string
			for _, f := range doc.Findings {
				if f.Level != doctor.OK {
					names = append(names, f.Check)
				}
			}
			return names
		},
		Text: func(bool) string {
			var b strings.Builder
			for _, f := range doc.Findings {
				b.WriteString(a.findingWord(f.Level) + "  " + output.Clean(joinNonEmpty("    fix: ", f.Text, f.Fix)) + "\n")
			}
			return b.String()
		},
	}
}

// findingWord returns the word before a finding. OK is in lower case, so that the other levels
// stand out even without colors.
func (a *app) findingWord(l doctor.Level) string {
	p := a.printer()
	switch l {
	case doctor.OK:
		return p.Paint("ok  ", output.Good)
	case doctor.Warn:
		return p.Paint("WARN", output.Caution)
	}
	return p.Paint("FAIL", output.Bad)
}
