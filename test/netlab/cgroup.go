package netlab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/need"
)

// Cgroup moves this process, which is to be balanced at connect(), into a new cgroup of version 2 until the test ends, and returns its directory. Tests that use it
// don't run in parallel with others of their process.
func Cgroup(t testing.TB) string {
	t.Helper()
	need.Root(t)
	need.KernelFeature(t, linux.NetnsCookie, sockets.Namespace() != 0) // without it, nothing is balanced at connect()
	root := ""
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var s unix.Statfs_t
		if err := unix.Statfs(dir, &s); err == nil && s.Type == unix.CGROUP2_SUPER_MAGIC {
			root = dir
		}
	}
	if root == "" {
		root = t.TempDir()
		if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
			need.Lack(t, need.ReasonCgroups, err.Error())
		}
		t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	}
	name := fmt.Sprintf("ironvip-test-%d", os.Getpid())
	_ = os.Remove(filepath.Join(root, name)) // of a process that was killed and had this number
	need.ControlGroup(t, root, name)
	own, err := os.ReadFile("/proc/self/cgroup")
	must(t, "the cgroup of this process", err)
	before := root
	for line := range bytes.Lines(own) {
		if path, is := strings.CutPrefix(strings.TrimSpace(string(line)), "0::"); is {
			before = filepath.Join(root, path)
		}
	}
	move := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, os.Getpid()), 0)
	}
	dir := filepath.Join(root, name)
	must(t, "make a cgroup", os.Mkdir(dir, 0o755))
	must(t, "move into it", move(dir))
	t.Cleanup(func() {
		if err := move(before); err != nil {
			t.Errorf("leave the cgroup: %v", err)
		}
		if err := os.Remove(dir); err != nil {
			t.Errorf("remove the cgroup: %v", err)
		}
	})
	return dir
}
