package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Every client can reach the program, so it contains nothing that it does not need.
func TestContents(t *testing.T) {
	text, err := exec.Command("go", "list", "-deps", ".").Output()
	must.Succeed(t, err, "go list")
	all := strings.Fields(string(text))
	must.True(t, slices.Contains(all, "github.com/ironvip/ironvip/proxy/process"), "packages %q", all)
	for _, p := range all {
		for _, refused := range []string{"net/http", "crypto/tls", "github.com/ironvip/ironvip/api", "github.com/ironvip/ironvip/configs", "github.com/ironvip/ironvip/sources",
			"github.com/ironvip/ironvip/agent", "github.com/ironvip/ironvip/proxy/remote", "k8s.io", "github.com/hashicorp"} {
			if p == refused || strings.HasPrefix(p, refused+"/") {
				t.Errorf("it contains %s", p)
			}
		}
	}
	expect.AtMost(t, len(all), 210, "packages")
}
