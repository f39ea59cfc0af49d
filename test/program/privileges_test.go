//go:build system || vm

package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// runsUnprivileged: the agent works as a user with only the unit's capabilities.
func runsUnprivileged(t *testing.T, capabilities []uintptr) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", strings.Replace(service("web", "", a), "port = 8080", "port = 81", 1))
	h.belongsTo(nobody)
	h.adjust = func(cmd *exec.Cmd) {
		cmd.Path = h.publicBinary()
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		cmd.SysProcAttr.AmbientCaps = capabilities
	}
	h.start()
	addr := h.vip("web") + ":81" // below 1024
	h.serves(addr, "a")
	h.put("api", a)
	h.kill()
	h.start()
	h.serves(addr, "a")
	h.serves(h.vip("api")+":8080", "a")
	h.ok("status", "--wait")
	if mode == "proxy" {
		mentions(t, "dataplane show", h.ok("dataplane", "show"), "clients arrive by sk_lookup")
	}
	h.stop()

	// Without capabilities, missing privileges are reported with a hint.
	h.adjust = func(cmd *exec.Cmd) {
		cmd.Path = h.publicBinary()
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	h.edit("ironvip.toml", `mode = "`+mode+`"`, `mode = "ipvs"`)
	mentions(t, "ipvs without rights", h.fails(), `dataplane.mode = "ipvs"`, "fix: ", "hint: ", "CAP_NET_ADMIN")
	h.edit("ironvip.toml", `mode = "ipvs"`, `mode = "auto"`)
	if mode == "proxy" {
		h.start() // on the loopback the proxy needs no privileges
		mentions(t, "dataplane show", h.ok("dataplane", "show"), "proxy")
		h.serves(h.vip("api")+":8080", "a")
	}
}

// belongsTo changes the owner of the host's files.
func (h *host) belongsTo(uid int) {
	h.t.Helper()
	err := filepath.WalkDir(h.dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, uid, uid)
	})
	for d := filepath.Dir(h.dir); err == nil && d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		err = os.Chmod(d, 0o755)
	}
	must.Succeed(h.t, err)
}

// publicBinary returns a copy of the binary that every user may run.
func (h *host) publicBinary() string {
	h.t.Helper()
	path := filepath.Join(h.dir, "ironvip-binary")
	if _, err := os.Stat(path); err != nil {
		copyBinary(h.t, path)
	}
	return path
}

// as runs a command as another user.
func (h *host) as(uid uint32, groups []uint32, args ...string) result {
	h.t.Helper()
	cmd := exec.Command(h.publicBinary(), args...)
	cmd.Dir, cmd.WaitDelay = "/", wait.Timeout
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	must.True(h.t, cmd.ProcessState != nil, "ironvip %v as %d: %v", args, uid, err)
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}
