//go:build system

package program

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// notRun is why a command of the docs is not run. It is then only parsed, by its --help.
type notRun string

const (
	reference notRun = "an example of the reference, with files of the reader"
	wantsPath notRun = "reads a file of the reader"
	changes   notRun = "changes this host, or needs a stopped agent"
	wantsUnit notRun = "needs systemd or other addresses of the agent"
	wantsPeer notRun = "needs other hosts"
	endless   notRun = "runs until Ctrl-C"
)

// notRunnable are the beginnings of commands that are not run against the demo.
var notRunnable = []struct {
	begins string
	why    notRun
}{
	{"ironvip import ", wantsPath},
	{"ironvip config validate ./converted", wantsPath},
	{"ironvip config validate && systemctl", wantsUnit},
	{"ironvip config schema > /etc", changes},
	{"ironvip --addr https:", wantsUnit},
	{"ironvip agent ", changes},
	{"ironvip proxy ", endless},
	{"ironvip dashboard", endless},
	{"ironvip dataplane clean", changes},
	{"ironvip dataplane switch", changes},
	{"ironvip snapshot compare", changes},
	{"ironvip snapshot restore", changes},
	{"ironvip node new-id", changes},
	{"ironvip vip reserve", wantsPath}, // and a pool of its own
	{"ironvip vip release", wantsPath},
	{"ironvip node forget", wantsPeer},
	{"ironvip fleet ", wantsPeer}, // TestTutorials runs it
	{"ironvip announce explain", wantsPeer},
	{"ironvip announce move", wantsPeer},
	{"ironvip announce unpin", wantsPeer},
	{"ironvip backend drain web 10.1.0.11", wantsPath},
	{"ironvip backend ready web 10.1.0.11", wantsPath},
}

// exits are the exit codes of commands that report a state; others end with 0.
var exits = map[string][]int{"status": {0, 3}, "doctor": {0, 1, 3}, "config plan": {0, 10}}

// Every command in a code block of the docs runs against the demo, or at least exists with its flags.
//
// Slow: it runs about a hundred commands.
func TestCommandsOfTheDocs(t *testing.T) {
	need.Root(t)
	demo, addr := startDemo(t, nobody)
	dir := demo.dir
	samples := filepath.Join(dir, "etc")
	err := os.CopyFS(filepath.Join(samples, "services.d"), os.DirFS("../../configs/services.d"))
	if text, readErr := os.ReadFile("../../configs/ironvip.toml"); readErr == nil {
		err = errors.Join(err, os.WriteFile(filepath.Join(samples, "ironvip.toml"), text, 0o644))
	}
	must.Succeed(t, err)
	run := func(line string) (string, int) {
		cmd := exec.Command("timeout", "60", "sh", "-c", line)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "IRONVIP_ADDR="+addr)
		out, err := cmd.CombinedOutput()
		if exit, failed := errors.AsType[*exec.ExitError](err); failed {
			return string(out), exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		return string(out), 0
	}
	ran := 0
	for _, c := range commandsOfDocs(t) {
		why := notRun("")
		for _, n := range notRunnable {
			if strings.HasPrefix(c.line, n.begins) {
				why = n.why
			}
		}
		if c.page == "cli.md" {
			why = reference
		}
		if why != "" {
			plain, _, _ := strings.Cut(c.line, " > ")
			plain, _, _ = strings.Cut(plain, " && ")
			plain, _, _ = strings.Cut(plain, " | ")
			plain, _, _ = strings.Cut(plain, " < ")
			words := strings.Fields(plain)
			if out, code := run(plain + " --help"); code != 0 || strings.Contains(out, "Available Commands:") && len(words) > 2 {
				t.Errorf("%s: %s: exit code %d of --help (%s)\n%s", c.page, c.line, code, why, out)
			}
			continue
		}
		ran++
		line := strings.ReplaceAll(c.line, "/etc/ironvip", samples)
		if line == "ironvip config validate" {
			line += " " + samples
		}
		want := []int{0}
		for begins, codes := range exits {
			if strings.HasPrefix(line, "ironvip "+begins) {
				want = codes
			}
		}
		if out, code := run(line); !slices.Contains(want, code) {
			t.Errorf("%s: %s: exit code %d, want %v\n%s", c.page, line, code, want, out)
		}
	}
	expect.AtLeast(t, ran, 20, "only %d commands were run", ran)
}

type docCommand struct{ page, line string }

// commandsOfDocs returns the lines of code blocks that begin with ironvip, perhaps after a prompt or
// sudo, in the order of the pages.
func commandsOfDocs(t *testing.T) (out []docCommand) {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, path := range append([]string{"../../README.md"}, pages...) {
		text := must.Get(os.ReadFile(path))(t)
		fence := "-" // the language of the block around the line; "-" outside of one
		for line := range strings.Lines(string(text)) {
			line = strings.TrimRight(line, "\n")
			if language, isFence := strings.CutPrefix(line, "```"); isFence {
				if fence == "-" {
					fence = language
				} else {
					fence = "-"
				}
				continue
			}
			code, indented := strings.CutPrefix(line, "    ")
			if fence == "-" && !indented || fence != "-" && !slices.Contains([]string{"", "sh", "console"}, fence) {
				continue
			}
			code = strings.TrimPrefix(strings.TrimSpace(cmp.Or(code, line)), "$ ")
			code = strings.ReplaceAll(code, "sudo ", "")
			if strings.HasPrefix(code, "ironvip ") {
				code, _, _ = strings.Cut(code, "  #")
				c := docCommand{filepath.Base(path), strings.TrimSpace(code)}
				if isCommand.MatchString(c.line) && !slices.Contains(out, c) {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// isCommand excludes the synopses of cli.md, which have words in capitals and brackets.
var isCommand = regexp.MustCompile(`^[^\[\]]*$`)

// The README shows the services of the demo as TestDemo expects them. The VM has no README.
func TestReadmeShowsTheDemo(t *testing.T) {
	text := must.Get(os.ReadFile("../../README.md"))(t)
	var rows []string
	for _, row := range regexp.MustCompile(`(?m)^    (\w+ +127\.96\.0\.\d+)  `).FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row[1])
	}
	expect.SameList(t, rows, demoRows, "the README shows %q, the demo has", rows)
}
