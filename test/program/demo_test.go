//go:build system || vm

package program

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/exclusive"
	"github.com/ironvip/ironvip/test/logbuffer"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// demoRows are the names and VIPs of the demo's services, as the README shows them.
var demoRows = []string{"canary  127.96.0.18", "web     127.96.0.17"}

// startDemo runs a demo as a user until the test ends, and returns the address of its API.
func startDemo(t *testing.T, uid uint32) (h *host, api string) {
	t.Helper()
	exclusive.Use(t, exclusive.Demo)
	h = &host{t: t, dir: publicDir(t), log: &logbuffer.Buffer{}, done: make(chan error, 1)}
	tmp := filepath.Join(h.dir, "tmp")
	must.Succeed(t, errors.Join(os.Mkdir(tmp, 0o777), os.Chmod(tmp, 0o777)))
	cmd := exec.Command(h.dir+"/ironvip", "agent", "--demo")
	copyBinary(t, cmd.Path)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.Stdout, cmd.Stderr = h.log, h.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: uid == 0}}
	must.Succeed(t, cmd.Start())
	h.cmd = cmd
	go func() { h.done <- cmd.Wait() }()
	t.Cleanup(h.stop)
	h.eventually("the demo greets", func() error {
		found := regexp.MustCompile(`IRONVIP_ADDR=(http://\S+)`).FindStringSubmatch(h.log.String())
		if found == nil || !strings.Contains(h.log.String(), "Ctrl-C") {
			return errors.New("not yet")
		}
		api = found[1]
		return nil
	})
	return h, api
}

// showsDemo: `make demo` creates two services, prints a command with three requests that reach three
// backends, and leaves nothing after Ctrl-C. It works as root and as a user without privileges.
func showsDemo(t *testing.T, uid uint32) {
	h, api := startDemo(t, uid)
	text := h.log.String()
	url := regexp.MustCompile(`curl -s (http://\S+?/);`).FindStringSubmatch(text)
	must.True(t, url != nil, "no line to paste:\n%s", text)
	want := "dataplane  proxy"
	if mode == "ipvs" && uid == 0 {
		want = "dataplane  ipvs"
	}
	mentions(t, "the greeting", text, want)

	client := &http.Client{Timeout: wait.Timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	h.eventually("three requests reach three backends", func() error { // a check may have been slow
		got := map[string]bool{}
		for range 3 {
			resp := must.Get(client.Get(url[1]))(t)
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			must.Succeed(t, err)
			got[string(body)] = true
		}
		if len(got) != 3 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	dig := regexp.MustCompile(`dig @(\S+) -p (\d+) \+short (\S+)`).FindStringSubmatch(text)
	must.True(t, dig != nil, "no dig line:\n%s", text)
	query := new(dns.Msg).SetQuestion(dns.Fqdn(dig[3]), dns.TypeA)
	h.eventually("the name of the dig line resolves", func() error {
		reply, _, err := (&dns.Client{Timeout: wait.Timeout}).Exchange(query, net.JoinHostPort(dig[1], dig[2]))
		if err != nil {
			return err
		}
		if len(reply.Answer) != 1 || !regexp.MustCompile(`^http://`+regexp.QuoteMeta(reply.Answer[0].(*dns.A).A.String())+`[:/]`).MatchString(url[1]) {
			return fmt.Errorf("%v, want the address of %s", reply.Answer, url[1])
		}
		return nil
	})
	if r := command(t, "--addr", api, "status"); r.code != 0 {
		t.Errorf("status of the demo: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	list := command(t, "--addr", api, "service", "list").stdout
	if !strings.Contains(url[1], strings.Fields(demoRows[1])[1]) {
		t.Errorf("the demo uses %s, the README %q", url[1], demoRows[1])
	}
	for _, row := range demoRows {
		mentions(t, "the demo's services", list, row)
	}
	if r := command(t, "--addr", api, "service", "list", "-o", "name"); r.stdout != "canary\nweb\n" {
		t.Errorf("the demo's services: %q", r.stdout)
	}

	cmd := h.cmd
	h.signal(syscall.SIGINT)
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("Ctrl-C: exit code %d\n%s", code, h.log)
	}
	if mode == "ipvs" {
		for _, args := range [][]string{{"ipvsadm", "-Sn"}, {"nft", "list", "ruleset"}, {"ip", "-o", "addr"}} {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil || strings.Contains(string(out), "127.96.0.") || strings.Contains(string(out), "-demo") {
				t.Errorf("left in the kernel: %v: %v\n%s", args, err, out)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(h.dir, "tmp", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
