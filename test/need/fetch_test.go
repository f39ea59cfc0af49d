package need

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Missing packages are installed by every shell that a script may use, including packages that dpkg
// doesn't know, and again after a failed attempt.
func TestMissingPackagesAreInstalled(t *testing.T) {
	const script = `
say() { :; }
die() { echo "gave up"; exit 1; }
. ../fetch.sh
sleep() { :; }
tries=0
apt_install() { tries=$((tries + 1)); echo "try $tries: $*"; [ $tries -gt %d ]; }
packages %s
echo done`
	if _, err := os.Stat("../fetch.sh"); err != nil { // makes go test notice its changes
		t.Fatal(err)
	}
	bin := t.TempDir()
	for name, does := range map[string]string{
		"dpkg-query": "printf 'ii here un half '; exit 1", // as for an unknown package
		"apt-get":    "exit 1",
	} {
		must.Succeed(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+does+"\n"), 0o755))
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for _, shell := range []string{"bash -euo pipefail", "sh -eu"} {
		for _, test := range []struct {
			names string
			fails int
			want  string
		}{
			{"here", 0, "done"},
			{"here new half", 0, "try 1: new half, done"},
			{"new", 3, "try 1: new, try 2: new, try 3: new, try 4: new, done"},
			{"new", 4, "try 1: new, try 2: new, try 3: new, try 4: new, gave up"},
		} {
			command := append(strings.Fields(shell), "-c", fmt.Sprintf(script, test.fails, test.names))
			out, _ := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
			if got := strings.Join(strings.Split(strings.TrimSpace(string(out)), "\n"), ", "); got != test.want {
				t.Errorf("%s: packages %s, of which the installation fails %d times: %q, want %q", shell, test.names, test.fails, got, test.want)
			}
		}
	}
}

// Daemons are installed without their services: apt may not start them, and they are disabled for
// the next boot. The file that asks apt to start nothing is removed again, also after a failure or
// a signal.
func TestIdlePackages(t *testing.T) {
	const script = `
say() { :; }
die() { echo "gave up"; exit 1; }
. ../fetch.sh
sleep() { :; }
as_root() { "$@"; }
apt_install() {
	sh "$IRONVIP_POLICY_RC_D"; echo "policy $?"
	[ %[1]s = works ] || [ %[1]s = fails ] || sh -c 'kill $PPID'
	[ %[1]s = works ]
}
idle_packages here new && echo done`
	bin := t.TempDir()
	for name, does := range map[string]string{
		"dpkg-query": "printf 'ii here '; exit 1",
		"dpkg":       `[ "$*" = "-L new" ] && printf '/usr/bin/new\n/lib/systemd/system/new.service\n/lib/systemd/system/new.socket\n'`,
		"systemctl":  `echo "systemctl $*"`,
		"apt-get":    "exit 1",
	} {
		must.Succeed(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+does+"\n"), 0o755))
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	policy := filepath.Join(bin, "policy-rc.d")
	t.Setenv("IRONVIP_POLICY_RC_D", policy)
	for _, shell := range []string{"bash -euo pipefail", "sh -eu"} {
		for _, test := range []struct{ outcome, want string }{
			{"works", "policy 101, systemctl -q disable new.service, done"},
			{"fails", "policy 101, policy 101, policy 101, policy 101, gave up"},
			{"ends", "policy 101"},
		} {
			command := append(strings.Fields(shell), "-c", fmt.Sprintf(script, test.outcome))
			out, _ := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
			got := strings.Join(strings.Split(strings.TrimSpace(string(out)), "\n"), ", ")
			expect.Equal(t, got, test.want, "%s: an installation that %s", shell, test.outcome)
			_, err := os.Stat(policy)
			expect.True(t, err != nil, "%s: an installation that %s leaves its policy", shell, test.outcome)
		}
	}
}
