//go:build system

package program

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs the scenarios of testdata/script. Each script has one agent and three
// backends, a, b and c. The files below etc/ are the agent's configuration directory;
// ironvip.toml is written for the script, with more.toml appended.
//
// Variables: $POOL is the first three bytes of the pool's addresses, $MODE the dataplane, $IRONVIP the binary,
// $SOCKET the API's address. $a is the address and port of backend a, ${a_port} its port,
// and ${a_toml} and ${a_json} name it in a list of backends. b and c have the same variables. Every file of
// the archive may use them.
//
// Commands, beside those of testscript (cmp, stdout, stderr, ...):
//
//	agent start|stop|kill|hup   a start waits until the agent is ready
//	agent fails                 start an agent that must end by itself with exit code 1; stdout is its log
//	ironvip ARG...              run a client command; ! expects a failure
//	exit CODE ARG...            run a client command that ends with this exit code
//	install FILE NAME           replace etc/NAME in one step, with FILE's text
//	config [FILE]               rewrite ironvip.toml, with FILE's text appended
//	edit NAME FROM TO           replace text in etc/NAME
//	vip SERVICE [VARIABLE]      wait until a service has a VIP; the variable is its name, or this
//	backend refuse|accept NAME  make a backend refuse connections, or accept them again
//	serves ADDR BACKEND...      wait until exactly these backends answer
//	answers ADDR BACKEND...     the same, but at once
//	closed ADDR                 wait until nobody answers
//	rest CODE METHOD PATH [BODY]  call the API and wait until a write is applied; stdout is the answer in one line
//	nowait CODE METHOD PATH [BODY]  the same without waiting
//	bytes HEX NAME              replace etc/NAME with these bytes
//	json                        fail if stdout is not one JSON document
//	same X Y                    fail if the two differ
//	until REGEXP ARG...         repeat a client command until its output matches
//	log REGEXP                  wait until the agent's log matches; ! fails if it matches now
//
// Slow: the scripts of checks wait for their intervals.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("scripts: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			parallel(t)
			s := newScript(t)
			testscript.RunT(inline{t}, testscript.Params{Files: []string{file}, Setup: s.setup, Cmds: s.commands()})
		})
	}
}

// inline runs a script in the test that it was given, not in a subtest.
type inline struct{ *testing.T }

func (inline) Parallel()                                {}
func (inline) Verbose() bool                            { return testing.Verbose() }
func (i inline) Run(_ string, run func(t testscript.T)) { run(i) }

// script is the agent and the backends of one script.
type script struct {
	*host
	backends map[string]*backend
}

func newScript(t *testing.T) *script {
	s := &script{host: newHost(t), backends: map[string]*backend{}}
	for _, name := range []string{"a", "b", "c"} {
		s.backends[name] = newBackend(t, name)
	}
	return s
}

// setup puts the variables into the archive's files, and moves etc/ to the agent's directory.
func (s *script) setup(env *testscript.Env) error {
	s.fill(env)
	vars := func(name string) string { return env.Getenv(name) }
	err := filepath.WalkDir(env.WorkDir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(expand(string(text), vars)), 0o644)
	})
	if err != nil {
		return err
	}
	s.config(readIfThere(filepath.Join(env.WorkDir, "etc", "more.toml")))
	files, err := filepath.Glob(filepath.Join(env.WorkDir, "etc", "*.d", "*"))
	if err != nil {
		return err
	}
	for _, f := range files {
		dir := filepath.Base(filepath.Dir(f))
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o755); err != nil {
			return err
		}
		s.write(filepath.Join(dir, filepath.Base(f)), readIfThere(f))
	}
	if err := os.RemoveAll(filepath.Join(env.WorkDir, "etc")); err != nil {
		return err
	}
	return os.Symlink(s.dir, filepath.Join(env.WorkDir, "etc"))
}

func (s *script) fill(env *testscript.Env) {
	env.Setenv("POOL", s.pool)
	env.Setenv("POOL_BASE", poolBase)
	env.Setenv("MODE", mode)
	env.Setenv("IRONVIP", bin(s.t))
	env.Setenv("SOCKET", "unix://"+filepath.Join(s.dir, "sock"))
	env.Setenv("IRONVIP_ADDR", env.Getenv("SOCKET"))
	for name, b := range s.backends {
		env.Setenv(name, b.addr)
		env.Setenv(name+"_port", strconv.Itoa(b.port))
		env.Setenv(name+"_toml", b.toml())
		env.Setenv(name+"_json", b.json())
	}
}

// expand replaces $name and ${name} where the variable is set, and leaves the rest.
func expand(text string, vars func(string) string) string {
	return os.Expand(text, func(name string) string {
		if v := vars(name); v != "" {
			return v
		}
		return "$" + name
	})
}

func readIfThere(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}

type scriptCommand = func(ts *testscript.TestScript, neg bool, args []string)

func (s *script) commands() map[string]scriptCommand {
	takes := func(least, most int, run func(ts *testscript.TestScript, args []string)) scriptCommand {
		return func(ts *testscript.TestScript, neg bool, args []string) {
			if neg || len(args) < least || len(args) > most {
				ts.Fatalf("usage: %d to %d arguments, and no !", least, most)
			}
			run(ts, args)
		}
	}
	const many = 100
	return map[string]scriptCommand{
		"ironvip": func(ts *testscript.TestScript, neg bool, args []string) {
			if err := ts.Exec(bin(s.t), args...); (err != nil) != neg {
				ts.Fatalf("ironvip %s: %v", strings.Join(args, " "), err)
			}
		},
		"agent":   takes(1, 1, s.agent),
		"exit":    takes(2, many, s.exit),
		"install": takes(2, 2, s.install),
		"config": takes(0, 1, func(ts *testscript.TestScript, args []string) {
			more := ""
			if len(args) == 1 {
				more = expand(ts.ReadFile(args[0]), ts.Getenv)
			}
			s.config(more)
		}),
		"edit": takes(3, 3, func(_ *testscript.TestScript, args []string) { s.edit(args[0], args[1], args[2]) }),
		"vip": takes(1, 2, func(ts *testscript.TestScript, args []string) {
			ts.Setenv(args[len(args)-1], s.vip(args[0]))
		}),
		"serves": takes(2, many, func(_ *testscript.TestScript, args []string) { s.serves(args[0], args[1:]...) }),
		"answers": takes(2, many, func(ts *testscript.TestScript, args []string) {
			got := answered(s.t, args[0], 2*(len(args)-1))
			for _, name := range args[1:] {
				if got[name] == 0 || len(got) != len(args)-1 {
					ts.Fatalf("%s is answered by %v", args[0], got)
				}
			}
		}),
		"closed": takes(1, 1, func(_ *testscript.TestScript, args []string) {
			s.eventually(args[0]+" is refused", func() error {
				if name, err := who(args[0]); err == nil {
					return fmt.Errorf("%s answers", name)
				}
				return nil
			})
		}),
		"same": takes(2, 2, func(ts *testscript.TestScript, args []string) {
			if args[0] != args[1] {
				ts.Fatalf("%s is not %s", args[0], args[1])
			}
		}),
		"rest":   takes(3, 4, func(ts *testscript.TestScript, args []string) { s.call(ts, args, "Prefer", "wait=300") }),
		"nowait": takes(3, 4, func(ts *testscript.TestScript, args []string) { s.call(ts, args) }),
		"bytes": takes(2, 2, func(ts *testscript.TestScript, args []string) {
			raw, err := hex.DecodeString(args[0])
			ts.Check(err)
			s.write(args[1], string(raw))
		}),
		"backend": takes(2, 2, func(ts *testscript.TestScript, args []string) {
			b := s.backends[args[1]]
			switch {
			case b != nil && args[0] == "refuse":
				ts.Check(b.refuse())
			case b != nil && args[0] == "accept":
				ts.Check(b.accept())
			default:
				ts.Fatalf("backend refuse or accept, and a, b or c")
			}
		}),
		"json": takes(0, 0, func(ts *testscript.TestScript, _ []string) {
			if !json.Valid([]byte(ts.ReadFile("stdout"))) {
				ts.Fatalf("stdout is not JSON")
			}
		}),
		"until": takes(2, many, s.until),
		"log": func(ts *testscript.TestScript, neg bool, args []string) {
			if len(args) != 1 {
				ts.Fatalf("usage: log REGEXP")
			}
			want := pattern(ts, args[0])
			if neg {
				if want.MatchString(s.log.String()) {
					ts.Fatalf("the log matches %s", args[0])
				}
				return
			}
			s.eventually("the log says "+args[0], func() error {
				if !want.MatchString(s.log.String()) {
					return errors.New("not in the log")
				}
				return nil
			})
		},
	}
}

func pattern(ts *testscript.TestScript, text string) *regexp.Regexp {
	re, err := regexp.Compile("(?m)" + text)
	ts.Check(err)
	return re
}

func (s *script) agent(ts *testscript.TestScript, args []string) {
	switch args[0] {
	case "start":
		s.start()
	case "stop":
		s.stop()
	case "kill":
		s.kill()
	case "hup":
		s.mu.Lock()
		defer s.mu.Unlock()
		ts.Check(s.cmd.Process.Signal(syscall.SIGHUP))
	case "fails":
		fmt.Fprint(ts.Stdout(), s.fails())
	default:
		ts.Fatalf("agent %s: start, stop, kill, hup or fails", args[0])
	}
}

func (s *script) exit(ts *testscript.TestScript, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(bin(s.t), args[1:]...)
	var failed *exec.ExitError
	got := 0
	if errors.As(err, &failed) {
		got = failed.ExitCode()
	} else {
		ts.Check(err)
	}
	if strings.Contains(ts.ReadFile("stdout"), "error: ") {
		ts.Fatalf("ironvip %s: an error on stdout", strings.Join(args[1:], " "))
	}
	if got != want {
		ts.Fatalf("ironvip %s: exit code %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

func (s *script) install(ts *testscript.TestScript, args []string) {
	s.write(args[1], expand(ts.ReadFile(args[0]), ts.Getenv))
}

// call sends a request with these header fields.
func (s *script) call(ts *testscript.TestScript, args []string, header ...string) {
	body := ""
	if len(args) == 4 {
		body = expand(args[3], ts.Getenv)
	}
	code, tree := s.rest(args[1], args[2], body, header...)
	fmt.Fprintln(ts.Stdout(), compact(tree))
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("%s %s: status %d, want %s", args[1], args[2], code, args[0])
	}
}

func (s *script) until(ts *testscript.TestScript, args []string) {
	want := pattern(ts, args[0])
	var last result
	s.eventually(fmt.Sprintf("ironvip %s says %s", strings.Join(args[1:], " "), args[0]), func() error {
		if last = s.cli(slices.Clone(args[1:])...); !want.MatchString(last.stdout + last.stderr) {
			return fmt.Errorf("it says\n%s%s", last.stdout, last.stderr)
		}
		return nil
	})
	fmt.Fprint(ts.Stdout(), last.stdout)
	fmt.Fprint(ts.Stderr(), last.stderr)
}
