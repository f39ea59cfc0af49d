package probe

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// shell is a check that runs a script.
func shell(script string, args ...string) vip.HealthCheck {
	return vip.HealthCheck{Type: vip.CheckExec, Command: strings.Join(append([]string{"/bin/sh", "-c", script}, args...), "\x00")}
}

func TestExec(t *testing.T) {
	t.Setenv("SECRET_TOKEN", "x")
	at := addr("[2001:db8::1]:8080")
	run(t, Options{}, []expectation{
		{"passes", at, shell("exit 0"), OK, ""},
		{"passes with much output", at, shell("head -c 10000000 /dev/zero"), OK, ""},
		{"environment", at, shell(`[ "$IRONVIP_ADDRESS $IRONVIP_PORT $PWD ${SECRET_TOKEN-none}" = "2001:db8::1 8080 / none" ] || { env; exit 1; }`), OK, ""},
		{"arguments", at, shell(`[ "$1" = 'a b;$c' ]`, "sh", "a b;$c"), OK, ""},
		{"no shell", at, vip.HealthCheck{Type: vip.CheckExec, Command: "/bin/test\x00$PATH\x00=\x00$PATH"}, OK, ""},
		{"fails", at, shell("exit 3"), Exited, "exit status 3"},
		{"reason", at, shell("echo; echo disk full >&2; echo more; exit 1"), Exited, "exit status 1: disk full"},
		{"long reason", at, shell("head -c 100000 /dev/zero | tr '\\0' x; exit 1"), Exited, "exit status 1: " + strings.Repeat("x", maxReason-len("exit status 1: "))},
		{"binary output", at, shell(`printf '\033[31mred\377\n'; exit 1`), Exited, "exit status 1:  [31mred"},
		{"killed", at, shell("kill -9 $$"), Exited, "signal: killed"},
		{"hangs", at, shell("sleep 60"), TimedOut, "command killed after 500ms"},
		{"hangs and ignores signals", at, shell("trap '' TERM INT HUP; while :; do sleep 60; done"), TimedOut, "command killed"},
		{"writes without end", at, shell("cat /dev/zero"), TimedOut, "command killed"},
		{"no such program", at, vip.HealthCheck{Type: vip.CheckExec, Command: "/no/such/program"}, Local, "no such file"},
		{"not a program", at, vip.HealthCheck{Type: vip.CheckExec, Command: "/etc/passwd"}, Local, "permission denied"},
	})
}

// Nothing of a command's process group survives its end, and a process that left the group delays the
// result by no more than 100 ms.
func TestExecLeavesNoProcess(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	at := addr("127.0.0.1:1")
	run(t, Options{}, []expectation{
		{"child", at, shell("sleep 1000 & echo $! >$1", "sh", file("child")), OK, ""},
		{"child of one that hangs", at, shell("sleep 1000 & echo $! >$1; wait", "sh", file("hung")), TimedOut, "killed"},
		{"child that left the group", at, shell("setsid sh -c 'echo $$ >$0.tmp; mv $0.tmp $0; exec sleep 1000' $1 & while ! [ -e $1 ]; do :; done", "sh", file("away")), OK, ""},
	})
	pid := func(name string) int {
		text := must.Get(os.ReadFile(file(name)))(t)
		return must.Get(strconv.Atoi(strings.TrimSpace(string(text))))(t)
	}
	if err := unix.Kill(pid("away"), unix.SIGKILL); err != nil { // it ran until now
		t.Error(err)
	}
	for _, name := range []string{"child", "hung"} {
		wait.Until(t, name+" ends", func() bool { return ended(pid(name)) })
	}
}

// ended reports whether a process is gone or a zombie that nobody reads.
func ended(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(text), ") ")
	return err != nil || strings.HasPrefix(rest, "Z")
}

// At most the allowed number of commands runs at once, and an engine that ends kills them.
func TestCommandsAreBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	e, stop := start(t, Options{Commands: 3})
	check := shell("echo $$ >>"+file+"; sleep 1000", "sh")
	check.Timeout = vip.MaxCheckTimeout
	for port := range 20 {
		e.Start(NewTarget(addr("127.0.0.1:"+strconv.Itoa(port+1)), check), Use{Namespace: "default"})
	}
	pids := func() []string {
		text, _ := os.ReadFile(file)
		return strings.Fields(string(text))
	}
	wait.Until(t, "three commands", func() bool { return len(pids()) == 3 && e.Stats().Waiting == 17 })
	expect.Equal(t, e.Stats().Running, 3, "running")
	stop()
	for _, text := range pids() {
		n, _ := strconv.Atoi(text)
		expect.True(t, ended(n), "process %d runs after the end", n)
	}
	expect.Equal(t, len(pids()), 3, "commands ran")
}
