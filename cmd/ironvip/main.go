// Command ironvip is the whole of ironvip in one binary: the daemon
// ("ironvip agent") and the client commands that ask it.
//
// This package wires the parts of the pipeline by hand and holds no logic of
// its own: read agent.go to see how a service travels.
package main

import (
	"context"
	"os"

	"github.com/ironvip/ironvip/cmd/ironvip/cli"
)

// version is set by the build.
var version = "devel"

func main() {
	os.Exit(cli.Execute(context.Background(), cli.Options{Version: version, AgentCommand: agentCommand(),
		CheckFiles: checkFiles, Clean: clean, Export: exportIdle, Import: importIdle}, os.Args[1:]))
}
