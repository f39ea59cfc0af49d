//go:build system && long

package program

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// agents returns the processes with the host's configuration.
func (h *host) agents() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		args, err := os.ReadFile(file)
		pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
		if err == nil && bytes.Contains(args, []byte("\x00agent\x00--config\x00"+h.dir)) && !bytes.HasPrefix(args, []byte("/bin/sh\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (h *host) isReady() error {
	resp, err := h.http().Get("http://ironvip/readyz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// crash kills all processes of the host, and waits for their end.
func (h *host) crash() {
	h.t.Helper()
	h.eventually("all processes have ended", func() error {
		left := h.agents()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	h.kill()
}

// One of both processes of a switch is killed, at each step. Afterwards one agent or none serves; whichever does, and the next
// one after a crash, runs one dataplane, serves everything, and leaves nothing of the other one.
func TestKilledDuringASwitch(t *testing.T) {
	h, l, tcp, udp := newNFTLab(t)
	t.Cleanup(h.crash)
	h.start()
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "auto"`)
	serves := func(when string) (mode string) {
		t.Helper()
		bothServe(t, h, l, tcp, udp)
		show := h.ok("dataplane", "show")
		if mode = "proxy"; strings.Contains(show, "nft: in sync") {
			mode = "nft"
			inKernel(t, h, l, []string{"neighbour", "ironvip_nft"}, nil)
		} else {
			mentions(t, when, show, "proxy: in sync")
			inKernel(t, h, l, []string{"neighbour"}, []string{"ironvip_nft"})
		}
		return mode
	}
	for _, old := range []bool{false, true} {
		for _, step := range []string{"switching the dataplane", "handing over", "taking over", "msg=ready", "handed over"} {
			victim := map[bool]string{false: "the successor", true: "the old agent"}[old]
			when := fmt.Sprintf("%s is killed at %q", victim, step)
			before := serves("before " + when)
			to := map[string]string{"proxy": "nft", "nft": "proxy"}[before]
			first, seen := h.cmd.Process.Pid, len(h.log.String())
			done := make(chan result, 1)
			go func() { done <- h.cli("dataplane", "switch", to, "--timeout", "5s") }()
			h.eventually(when, func() error {
				if !strings.Contains(h.log.String()[seen:], step) {
					return errors.New("the step has not come")
				}
				if old {
					return syscall.Kill(first, syscall.SIGKILL)
				}
				for _, pid := range h.agents() {
					if pid != first {
						return syscall.Kill(pid, syscall.SIGKILL)
					}
				}
				return errors.New("there is no successor")
			})
			r := <-done
			var left []int
			relays := false // the old process is no agent any more
			h.eventually("one agent that is ready, or none", func() error {
				left, relays = h.agents(), !old && strings.Contains(h.log.String()[seen:], "handed over")
				if len(left) > 1 {
					return fmt.Errorf("%v", left)
				}
				if len(left) == 0 || relays {
					return nil
				}
				return h.isReady()
			})
			serving := len(left) == 1 && !relays
			t.Logf("%s: exit %d, %d are left, of agents %v, %s", when, r.code, len(left), serving, strings.TrimSpace(r.stderr))
			if serving {
				mode := serves(when)
				if r.code == 0 && mode != to || strings.Contains(r.stderr, "not moved") && mode != before {
					t.Errorf("%s: %s, after %s; exit %d: %s", when, mode, before, r.code, r.stderr)
				}
				before = mode
			}
			h.crash()
			h.start()
			if mode := serves("a restart after " + when); serving && mode != before {
				t.Errorf("%s: %s runs, and %s after a restart", when, before, mode)
			}
			if files, _ := filepath.Glob(filepath.Join(h.dir, "state", "relays", "*")); len(files) > 0 {
				t.Errorf("%s: left after a restart: %v", when, files)
			}
		}
	}
}
