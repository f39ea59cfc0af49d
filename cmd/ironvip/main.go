// Command ironvip is all of ironvip in one binary: the daemon ("ironvip agent") and the client
// commands that ask it. Package cli parses the command line; package agent is the
// daemon.
package main

import (
	"context"
	"os"

	"github.com/ironvip/ironvip/cmd/ironvip/cli"
)

// version is set by the build.
var version = "devel"

func main() {
	os.Exit(cli.Execute(context.Background(), cli.ThisProcess(version), os.Args[1:]))
}
