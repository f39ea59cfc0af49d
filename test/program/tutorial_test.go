//go:build system

package program

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// The tutorials for two hosts work word by word. The commands run in the reader's order on hosts with the addresses of the
// page. A command is repeated until it succeeds, and those with the comment "on 10.0.0.5" run on that host only.
//
// Slow: openssl makes keys, and two servers and four agents start one after the other.
func TestTutorials(t *testing.T) {
	t.Run("etcd", func(t *testing.T) { follow(t, "fleet.md", "etcd") })
	t.Run("consul", func(t *testing.T) { follow(t, "consul.md", "consul agent") })
}

// tutorialHost is a host with its own /etc, /run and /var/lib.
type tutorialHost struct {
	node  *netlab.Node
	dir   string
	path  string // of the programs
	alone *process.Process
	agent *process.Process
}

func newTutorialHost(t *testing.T, l *netlab.Lab, name, addr, path string) *tutorialHost {
	t.Helper()
	h := &tutorialHost{node: l.AddClient(name), dir: t.TempDir(), path: path}
	h.node.AddAddr("eth0", netip.MustParsePrefix(addr+"/32"))
	l.Director.Run("ip", "route", "add", addr, "dev", name)
	h.alone = process.New("unshare", filepath.Join(h.dir, "alone"), h.node, "--mount", "--uts", "sh", "-ec", `
cp -a /etc "$0/etc"
grep -q ^ironvip: "$0/etc/group" || echo ironvip:x:990: >>"$0/etc/group"
mount --bind "$0/etc" /etc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /etc/ironvip/services.d /run/ironvip /var/lib/ironvip
hostname "$1"
touch "$0/ready"
exec sleep infinity`, h.dir, name)
	must.Succeed(t, h.alone.Start())
	t.Cleanup(h.alone.Kill)
	wait.For(t, name, func() error { _, err := os.Stat(filepath.Join(h.dir, "ready")); return err })
	h.agent = h.process("agent", "exec ironvip agent")
	t.Cleanup(func() {
		h.agent.Kill()
		if t.Failed() {
			t.Logf("%s: the agent's log:\n%s", name, h.agent.LogEnd(16<<10))
		}
	})
	return h
}

// process is a program that runs on the host.
func (h *tutorialHost) process(name, command string) *process.Process {
	return process.New("nsenter", filepath.Join(h.dir, name), h.node, h.args(command)[1:]...)
}

func (h *tutorialHost) args(command string) []string {
	return []string{"nsenter", fmt.Sprintf("--target=%d", h.alone.Pid()), "--mount", "--uts", "--wd=/root", "env", "PATH=" + h.path + ":" + os.Getenv("PATH"), "sh", "-ec", command}
}

func follow(t *testing.T, page, server string) {
	need.Root(t)
	path, l := t.TempDir(), netlab.New(t)
	for name, at := range map[string]string{"ironvip": bin(t), strings.Fields(server)[0]: need.Server(t, strings.Fields(server)[0])} {
		must.Succeed(t, os.Symlink(at, filepath.Join(path, name)))
	}
	one, two := newTutorialHost(t, l, "lb1", "10.0.0.5", path), newTutorialHost(t, l, "lb2", "10.0.0.6", path)
	for name, text := range map[string]string{
		"systemctl": "",
		"scp":       "while [ $# -gt 1 ]; do [ $1 = -p ] || cp -p $1 " + two.dir + "/etc/ironvip/; shift; done\n",
	} {
		must.Succeed(t, os.WriteFile(filepath.Join(path, name), []byte("#!/bin/sh\n"+text), 0o755))
	}
	for i, n := range l.Backends {
		addr := netip.AddrFrom4([4]byte{10, 1, 0, byte(11 + i)})
		n.AddAddr("eth0", netip.PrefixFrom(addr, 32))
		l.Director.Run("ip", "route", "add", addr.String(), "dev", n.Name)
		web := n.Listen(netip.AddrPortFrom(addr, 8080))
		go http.Serve(web, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "from", n.Name) }))
	}
	said := ""
	for _, step := range tutorial(t, page) {
		hosts := []*tutorialHost{one, two}
		if strings.Contains(step.text, "# on 10.0.0.5") {
			hosts = hosts[:1]
		}
		for _, h := range hosts {
			switch {
			case step.file != "":
				must.Succeed(t, os.WriteFile(filepath.Join(h.dir, step.file), []byte(step.text), 0o644))
				continue
			case strings.HasPrefix(step.text, server+" "):
				p := h.process("server", "exec "+step.text)
				must.Succeed(t, p.Start())
				t.Cleanup(p.Kill)
				continue
			}
			wait.For(t, h.node.Name+": "+step.text, func() error {
				out, err := h.node.Output(h.args(step.text)...)
				if err != nil {
					return errors.New(out)
				}
				said += out
				return nil
			})
			if strings.Contains(step.text, restart) {
				h.agent.Kill()
				must.Succeed(t, h.agent.Start())
			}
		}
	}
	for _, h := range []*tutorialHost{one, two} {
		wait.For(t, h.node.Name+" serves", func() error {
			if out, err := h.node.Output(h.args("ironvip service list")...); err != nil || !strings.Contains(out, " 2/2 ") {
				return errors.New(out)
			}
			return nil
		})
	}
	mentions(t, "the page", said, "lb1", "lb2", "192.0.2.16", "from backend")
}

const restart = "systemctl restart ironvip"

// step is a file or commands of a tutorial.
type step struct{ file, text string }

// tutorial returns the steps of the section "Tutorial with two hosts" of a page.
func tutorial(t *testing.T, page string) (steps []step) {
	t.Helper()
	text := string(must.Get(os.ReadFile("../../docs/" + page))(t))
	_, text, _ = strings.Cut(text, "# Tutorial with two hosts\n")
	text, _, _ = strings.Cut(text, "\n#") // of the next heading; comments of commands are not at the beginning of a line
	before := ""                          // the last line of text
	indented := false                     // the last line was a command
	for text != "" {
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		command, is := strings.CutPrefix(line, "    ")
		switch language, fenced := strings.CutPrefix(line, "```"); {
		case fenced:
			body, after, _ := strings.Cut(rest, "```\n")
			text = after
			s := step{text: body}
			if language == "toml" {
				_, name, _ := strings.Cut(before, "`/")
				s.file, _, _ = strings.Cut(name, "`")
			}
			steps = append(steps, s)
		case is && indented && !strings.Contains(steps[len(steps)-1].text, restart):
			steps[len(steps)-1].text += "\n" + command
		case is:
			steps = append(steps, step{text: command})
		case line != "":
			before = line
		}
		indented = is
	}
	must.True(t, len(steps) > 4, "%s: %+v", page, steps)
	return steps
}
