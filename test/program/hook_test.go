//go:build system

package program

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/hook"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/statecopy"
)

// webhook is a receiver that can be down. It accepts what is signed with secret.
type webhook struct {
	t      *testing.T
	addr   string
	secret string // the path of the file

	mu     sync.Mutex
	got    []hook.Document
	hangs  bool
	server *http.Server
}

const hookSecret = "8ad0f2f7c3b1e3d9"

// newWebhook reserves a port of a receiver that is down.
func newWebhook(t *testing.T) *webhook {
	port := freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))[1]
	w := &webhook{t: t, addr: fmt.Sprintf("127.0.0.1:%d", port), secret: filepath.Join(t.TempDir(), "secret")}
	must.Succeed(t, os.WriteFile(w.secret, []byte(hookSecret+"\n"), 0o644))
	t.Cleanup(w.down)
	return w
}

func (w *webhook) up() {
	w.t.Helper()
	l := must.Get(net.Listen("tcp", w.addr))(w.t)
	w.server = &http.Server{Handler: w}
	go w.server.Serve(l)
}

func (w *webhook) down() {
	if w.server != nil {
		w.server.Close()
		w.server = nil
	}
}

func (w *webhook) hang(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs = is
}

func (w *webhook) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	body := must.Get(io.ReadAll(r.Body))(w.t)
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write(body)
	expect.Equal(w.t, r.Header.Get(hook.SignatureHeader), fmt.Sprintf("sha256=%x", mac.Sum(nil)), "signature")
	var d hook.Document
	expect.Succeed(w.t, json.Unmarshal(body, &d), "%s", body)
	w.mu.Lock()
	hangs := w.hangs
	w.mu.Unlock()
	if hangs {
		<-r.Context().Done()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, d)
}

// toml returns the hook's table.
func (w *webhook) toml(name, events string) string {
	return fmt.Sprintf("[[hook]]\nname = %q\nevents = [%s]\nurl = \"http://%s/\"\nsecret_file = %q\ntimeout = \"5m\"\n", name, events, w.addr, w.secret)
}

// services returns the services of the accepted documents. A document that came twice in a row counts once: once is the
// least, and the order is that of the events.
func (w *webhook) services() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.got {
		out = append(out, d.Service)
	}
	return slices.Compact(out)
}

func (w *webhook) gets(h *host, want []string) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("the receiver has %v", want), func() error {
		if got := w.services(); !slices.Equal(got, want) {
			return fmt.Errorf("got %v", got)
		}
		return nil
	})
}

// hooksKeep waits until this many events of hooks are in the state file.
func (h *host) hooksKeep(want int) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("%d events of hooks are on disk", want), func() error {
		return statecopy.Look(filepath.Join(h.dir, "state"), func(db *store.DB) error {
			keys, err := store.NewBucket[hook.Row](db, "hooks").Keys()
			if err == nil && len(keys) != want {
				err = fmt.Errorf("has %v", keys)
			}
			return err
		})
	})
}

// hookProgram writes a program that appends the service of each event to a file, which the second result reads.
func hookProgram(t *testing.T, before string) (toml func(name, events string) string, ran func() []string) {
	dir := t.TempDir()
	path := filepath.Join(dir, "program")
	must.Succeed(t, os.WriteFile(path, []byte("#!/bin/sh\necho started $IRONVIP_SERVICE >>"+path+".started\n"+before+"\necho $IRONVIP_SERVICE >>"+path+".out\n"), 0o755))
	return func(name, events string) string {
			return fmt.Sprintf("[[hook]]\nname = %q\nevents = [%s]\ncommand = [%q]\ntimeout = \"5m\"\n", name, events, path)
		}, func() []string {
			text, _ := os.ReadFile(path + ".out")
			return strings.Fields(string(text))
		}
}

// Events whose receiver is down wait on disk. A kill of the agent, also in the middle of a program, loses none, and the next run
// delivers them in order. A receiver that hangs and a program that hangs delay neither services nor the stop.
func TestHooksSurviveAKill(t *testing.T) {
	parallel(t)
	h, a := newHost(t), newBackend(t, "a")
	down := newWebhook(t)
	once := filepath.Join(t.TempDir(), "once") // the first run hangs
	program, ran := hookProgram(t, "if ! [ -e "+once+" ]; then echo $$ >"+once+"; exec sleep 1000; fi")
	t.Cleanup(func() { // systemd would kill it with the agent
		text := must.Get(os.ReadFile(once))(t)
		expect.Succeed(t, syscall.Kill(must.Get(strconv.Atoi(strings.TrimSpace(string(text))))(t), syscall.SIGKILL))
	})
	const events = `"lease_given"`
	h.config(down.toml("down", events) + program("program", events))
	h.start()
	var names []string
	for i := range 5 {
		names = append(names, "s"+strconv.Itoa(i))
		h.serves(h.put(names[i], a)+":8080", "a")
	}
	h.hooksKeep(10)
	h.status("WARN", "hooks", "hook down fails since")
	h.kill()
	h.start()
	h.hooksKeep(5) // of the webhook
	expect.SameList(t, ran(), names)

	down.hang(true)
	down.up()
	h.stop() // within less than the 5 minutes of a request
	h.start()
	down.hang(false)
	down.down() // ends the request that hangs
	down.up()
	names = append(names, "last")
	h.put("last", a)
	down.gets(h, names)
	h.hooksKeep(0)
	h.eventually("the program has run for all", func() error {
		if got := ran(); !slices.Equal(got, names) {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}

// A reload adds, changes and removes hooks. One with a mistake names it, and changes nothing.
func TestReloadOfHooks(t *testing.T) {
	parallel(t)
	h, a := newHost(t), newBackend(t, "a")
	first, second := newWebhook(t), newWebhook(t)
	first.up()
	second.up()
	h.start()
	h.put("none", a)
	h.config(first.toml("pager", `"lease_given"`))
	r := h.cli("reload")
	expect.Contains(t, r.stdout+r.stderr, "took over hook")
	h.put("one", a)
	first.gets(h, []string{"one"})

	h.config(first.toml("pager", `"lease_gven"`))
	r = h.cli("reload")
	expect.True(t, r.code != 0, "a mistake is accepted")
	for _, says := range []string{`ironvip.toml:`, `hook[0].events[0]: "lease_gven" is no kind of event`, `did you mean "lease_given"?`} {
		expect.Contains(t, r.stdout+r.stderr, says)
	}
	h.put("two", a)
	first.gets(h, []string{"one", "two"})

	first.down()
	h.put("three", a)
	h.status("WARN", "hooks", "hook pager fails since")
	h.config(second.toml("pager", `"lease_given"`))
	h.mu.Lock()
	h.cmd.Process.Signal(syscall.SIGHUP)
	h.mu.Unlock()
	second.gets(h, []string{"three"}) // it keeps its queue
	h.config("")
	h.ok("reload")
	h.put("four", a)
	h.hooksKeep(0)
	second.gets(h, []string{"three"})
}

// On a full disk, hooks get their events from memory. Events that wait for their receiver are on disk once there is space.
func TestHooksOnAFullDisk(t *testing.T) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	up, down := newWebhook(t), newWebhook(t)
	up.up()
	disk := filepath.Join(h.dir, "state")
	must.Succeed(t, os.Mkdir(disk, 0o750))
	must.Succeed(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"), "mount a small tmpfs")
	t.Cleanup(func() {
		h.stop()
		expect.Succeed(t, syscall.Unmount(disk, syscall.MNT_DETACH), "unmount %s", disk)
	})
	const events = `"service_down", "state_failed", "config_reloaded"`
	h.config(up.toml("up", events) + down.toml("down", events))
	h.start()
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	// Events until the state file must grow, and more.
	sent := 0
	h.eventually("the state file can't be written", func() error {
		sent++
		h.ok("reload")
		if !strings.Contains(h.log.String(), "queued events of hooks can't be written") {
			return fmt.Errorf("%d events", sent)
		}
		return nil
	})
	count := func(w *webhook) (n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, d := range w.got {
			if d.Kind == "config_reloaded" && (i == 0 || w.got[i-1].ID != d.ID) {
				n++
			}
		}
		return n
	}
	has := func(w *webhook) {
		t.Helper()
		h.eventually("the receiver has every event", func() error {
			if n := count(w); n != sent {
				return fmt.Errorf("%d of %d", n, sent)
			}
			return nil
		})
	}
	has(up)
	h.status("FAIL", "state", "disk is full")
	must.Succeed(t, os.Remove(filler))
	h.eventually("the queue is on disk", func() error {
		return statecopy.Look(disk, func(db *store.DB) error {
			all, err := store.NewBucket[hook.Row](db, "hooks").All()
			n := 0
			for _, r := range all {
				if r.Kind == "config_reloaded" && r.Hook == "down" {
					n++
				}
			}
			if err == nil && n != sent {
				err = fmt.Errorf("%d of %d", n, sent)
			}
			return err
		})
	})
	h.kill()
	h.start()
	down.up()
	has(down)
}
