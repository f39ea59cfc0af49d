package main

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce/announcer"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/cmd/satellite"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// The program has raw sockets and many hosts trust it, so it contains nothing that it does not need.
func TestContents(t *testing.T) {
	text, err := exec.Command("go", "list", "-deps", ".").Output()
	must.Succeed(t, err, "go list")
	all := strings.Fields(string(text))
	must.True(t, slices.Contains(all, "github.com/ironvip/ironvip/announce/announcer"), "packages %q", all)
	for _, p := range all {
		for _, refused := range []string{"net/http", "crypto/tls", "github.com/ironvip/ironvip/api", "github.com/ironvip/ironvip/configs", "github.com/ironvip/ironvip/sources",
			"github.com/ironvip/ironvip/agent", "k8s.io", "github.com/hashicorp"} {
			if p == refused || strings.HasPrefix(p, refused+"/") {
				t.Errorf("it contains %s", p)
			}
		}
	}
	expect.AtMost(t, len(all), 200, "packages")
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		args     string
		fails    error
		code     int
		socket   string // "": no announcer runs
		out, err string
	}{
		{"", nil, satellite.ExitOK, control.DefaultSocket, "", ""},
		{"--socket /s", errors.New("socket /s is in use"), satellite.ExitFailed, "/s", "", "ironvip-announcer: socket /s is in use\n"},
		{"--version", nil, satellite.ExitOK, "", "devel\n", ""},
		{"--protocol", nil, satellite.ExitOK, "", "4\n", ""},
		{"--help", nil, satellite.ExitOK, "", "", "the socket for the agent"},
		{"--other", nil, satellite.ExitUsage, "", "", "not defined: -other"},
		{"extra", nil, satellite.ExitUsage, "", "", `unexpected argument "extra"`},
	} {
		var out, errOut bytes.Buffer
		socket := ""
		p := program(func(_ context.Context, o announcer.Options) error {
			if socket = o.Socket; o.Version != version {
				t.Errorf("version %q", o.Version)
			}
			return c.fails
		})
		code := p.Main(t.Context(), strings.Fields(c.args), &out, &errOut)
		if code != c.code || socket != c.socket || out.String() != c.out || !strings.Contains(errOut.String(), c.err) {
			t.Errorf("%q: exit code %d, socket %q, %q, %q", c.args, code, socket, out.String(), errOut.String())
		}
	}
}
