// Package satellite is the command line of the small programs that an agent steers over a socket: ironvip-announcer and
// ironvip-proxy.
package satellite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/ironvip/ironvip/internal/mirror"
)

// Exit codes, which those of ironvip begin with.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Program is one of them.
type Program struct {
	Name, Version string
	Socket        string // its default
	Run           func(ctx context.Context, socket string) error
}

// Main runs the program with its surroundings as arguments. It returns the exit code.
func (p Program) Main(ctx context.Context, args []string, out, errOut io.Writer) int {
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.SetOutput(errOut)
	socket := flags.String("socket", p.Socket, "the socket for the agent, which must run as the same user")
	show := flags.Bool("version", false, "print the version and exit")
	protocol := flags.Bool("protocol", false, "print the version of the protocol that an agent must speak, and exit")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return ExitOK
	case err != nil: // printed by Parse
		return ExitUsage
	case flags.NArg() > 0:
		fmt.Fprintf(errOut, "%s: unexpected argument %q\n", p.Name, flags.Arg(0))
		return ExitUsage
	case *show:
		fmt.Fprintln(out, p.Version)
		return ExitOK
	case *protocol:
		fmt.Fprintln(out, mirror.Protocol)
		return ExitOK
	}
	if err := p.Run(ctx, *socket); err != nil {
		fmt.Fprintf(errOut, "%s: %v\n", p.Name, err)
		return ExitFailed
	}
	return ExitOK
}
