// Command ironvip-announcer is the process that announces VIPs: "ironvip announcer" without the rest of
// ironvip. It has the privileges to send raw frames, so it contains no server or client of HTTP and no
// source of services, and its code takes 4 MB of memory instead of 27. The systemd unit runs it.
// Decision 53 has the reasons.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/ironvip/ironvip/announce/announcer"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/internal/mirror"
)

// version is set by the build.
var version = "devel"

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr, announcer.Main))
}

// Exit codes, as those of ironvip.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// run is main with its surroundings as arguments. It returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer, announce func(context.Context, announcer.Options) error) int {
	o := announcer.Options{Version: version}
	flags := flag.NewFlagSet("ironvip-announcer", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&o.Socket, "socket", control.DefaultSocket, "the socket for the agent, which must run as the same user")
	show := flags.Bool("version", false, "print the version and exit")
	protocol := flags.Bool("protocol", false, "print the version of the protocol that an agent must speak, and exit")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil: // printed by Parse
		return exitUsage
	case flags.NArg() > 0:
		fmt.Fprintf(errOut, "ironvip-announcer: unexpected argument %q\n", flags.Arg(0))
		return exitUsage
	case *show:
		fmt.Fprintln(out, version)
		return exitOK
	case *protocol:
		fmt.Fprintln(out, mirror.Protocol)
		return exitOK
	}
	if err := announce(ctx, o); err != nil {
		fmt.Fprintln(errOut, "ironvip-announcer:", err)
		return exitFailed
	}
	return exitOK
}
