// Command ironvip-announcer is the process that announces VIPs: "ironvip announcer" without the rest of
// ironvip. It has the privileges to send raw frames, so it contains no server or client of HTTP and no
// source of services, and its code takes 4 MB of memory instead of 27. The systemd unit runs it.
// docs/decisions/18 has the reasons.
package main

import (
	"context"
	"os"

	"github.com/ironvip/ironvip/announce/announcer"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/cmd/satellite"
)

// version is set by the build.
var version = "devel"

func main() {
	os.Exit(program(announcer.Main).Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func program(announce func(context.Context, announcer.Options) error) satellite.Program {
	return satellite.Program{Name: "ironvip-announcer", Version: version, Socket: control.DefaultSocket,
		Run: func(ctx context.Context, socket string) error {
			return announce(ctx, announcer.Options{Version: version, Socket: socket})
		}}
}
