package cli

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// versionDoc is the document of "version".
type versionDoc struct {
	Version string        `json:"version"`
	Go      string        `json:"go"`
	OS      string        `json:"os"`
	Arch    string        `json:"arch"`
	Agent   *agentVersion `json:"agent,omitempty"` // if one answers
}

type agentVersion struct {
	Node    string `json:"node"`
	Version string `json:"version"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "show the version of this program and of the running agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc := versionDoc{Version: a.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			c, err := a.clientWithin(min(a.timeout, time.Second))
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
			defer cancel()
			if status, err := c.Status(ctx); err == nil {
				doc.Agent = &agentVersion{Node: status.Node, Version: status.Version}
			} else if a.verbose {
				a.printer().Say("%v", err)
			}
			return a.show(versionView(doc))
		},
	}
}

func versionView(doc versionDoc) output.View {
	return output.View{
		Data:  doc,
		Names: func() []string { return []string{doc.Version} },
		Text: func(bool) string {
			text := fmt.Sprintf("ironvip %s (%s, %s/%s)\n", doc.Version, doc.Go, doc.OS, doc.Arch)
			if doc.Agent != nil {
				text += output.Clean(fmt.Sprintf("agent   %s on %s", doc.Agent.Version, doc.Agent.Node)) + "\n"
			}
			return text
		},
	}
}
