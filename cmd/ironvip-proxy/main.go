// Command ironvip-proxy is the process that forwards connections in userspace: "ironvip proxy" without the rest of ironvip.
// Every client can reach it, so it contains no server or client of HTTP and no source of services. The systemd unit runs it.
// docs/decisions/18 has the reasons.
package main

import (
	"context"
	"os"

	"github.com/ironvip/ironvip/cmd/satellite"
	"github.com/ironvip/ironvip/proxy/process"
)

// version is set by the build.
var version = "devel"

func main() {
	os.Exit(satellite.Program{Name: "ironvip-proxy", Version: version, Socket: process.DefaultSocket,
		Run: func(ctx context.Context, socket string) error {
			return process.Main(ctx, process.MainOptions{Version: version, Socket: socket})
		}}.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
