package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// Command returns the command "dashboard".
func Command(a *command.App) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "open a local port for the agent's dashboard, with your own rights",
		Long: `Prints a URL for your browser, and forwards the dashboard and the API of the agent (--addr) to a
loopback port, until Ctrl-C. The pages may do what you may do. The URL works once: the first browser
that opens it gets a key, without which the API refuses everything. In an SSH session, run the
printed command on your own machine first; it makes the port available there.`,
		Example: "  ironvip dashboard --listen 127.0.0.1:8000",
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "the loopback address and port; port 0 is any that is free")
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		at, err := netip.ParseAddrPort(listen)
		if err != nil || !at.Addr().IsLoopback() {
			return command.Usage(cmd, "invalid --listen %q: must be a loopback address and a port, such as 127.0.0.1:8000", listen)
		}
		who, err := c.Whoami(ctx)
		if err != nil {
			return err
		}
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("listen for the dashboard: %w", err)
		}
		at = l.Addr().(*net.TCPAddr).AddrPort()
		gate := New(at, c)
		a.Say("dashboard of %s as %s (%s); the URL works once; Ctrl-C ends it", who.Node, who.Name, who.Role)
		if err := a.Show(dashboardView(gate.URL(), tunnel(a.Getenv, at))); err != nil {
			return err
		}
		web := &http.Server{Handler: gate, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
		ended := context.AfterFunc(ctx, func() { _ = web.Close() }) // streams have no other end
		defer ended()
		if err := web.Serve(l); ctx.Err() == nil {
			return fmt.Errorf("serve the dashboard: %w", err)
		}
		return nil
	})
	return cmd
}

// dashboardAddress is where the dashboard is, for programs.
type dashboardAddress struct {
	URL string `json:"url"`
	SSH string `json:"ssh,omitempty"`
}

func dashboardView(url, ssh string) output.View {
	return output.View{Data: dashboardAddress{url, ssh}, Names: []string{url}, Text: func(*output.Printer) string {
		if ssh == "" {
			return url + "\n"
		}
		return "On your own machine, run this first:\n\n    " + ssh + "\n\nThen open there:\n\n    " + url + "\n"
	}}
}

// tunnel returns the command that makes a port of this host available at the other end of an SSH session,
// or "" outside of one.
func tunnel(getenv func(string) string, at netip.AddrPort) string {
	session := strings.Fields(getenv("SSH_CONNECTION")) // client, its port, server, its port
	if len(session) != 4 {
		return ""
	}
	port := ""
	if session[3] != "22" {
		port = "-p " + session[3] + " "
	}
	user := cmp.Or(getenv("SUDO_USER"), getenv("USER"))
	if user != "" {
		user += "@"
	}
	return fmt.Sprintf("ssh -N %s-L %d:%s %s%s", port, at.Port(), at, user, session[2])
}
