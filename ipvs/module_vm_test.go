//go:build linux && vm

package ipvs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// This file comes after those that use moby/ipvs, and must: that package looks
// up the number of the kernel's IPVS family once for a whole process, and the
// family has another one after its module was taken out and put back.

// module is a kernel module's file.
func module(t *testing.T, name string) string {
	t.Helper()
	var found string
	filepath.WalkDir("/lib/modules", func(path string, _ fs.DirEntry, _ error) error {
		if strings.TrimSuffix(filepath.Base(path), ".ko") == name {
			found = path
		}
		return nil
	})
	if found == "" {
		t.Fatalf("no file of module %s", name)
	}
	return found
}

func insertModule(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(module(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		t.Fatalf("insert %s: %v", name, err)
	}
}

// removeModule takes a module out, which waits for those that use it to let go:
// the kernel clears up the namespaces of earlier tests, with thousands of
// services, by and by.
func removeModule(t *testing.T, name string) {
	t.Helper()
	insertable := module(t, name)
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = unix.DeleteModule(name, unix.O_NONBLOCK); err == nil {
			return
		}
	}
	t.Fatalf("remove %s (%s): %v", name, insertable, err)
}

// A scheduler that isn't loaded is named, its service alone is missing, one in
// force stays as it was, and once it is loaded all is as wished.
func TestSchedulerNotLoaded(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	t.Cleanup(func() { insertModule(t, "ip_vs_lc") })
	removeModule(t, "ip_vs_lc")
	l := newLoop(t, p, -1)
	all := aFew()
	l.set(all[0])
	l.right()
	lacks := func(f *vip.Frontend) { f.Scheduler = vip.LeastConnection }
	l.set(with(all[0], lacks), all[1], with(all[3], lacks))
	for _, f := range []*vip.Frontend{all[0], all[3]} {
		l.says(f.Key, "the kernel has no scheduler \"lc\"")
		l.says(f.Key, "modprobe ip_vs_lc")
	}
	l.witness(*all[0], *all[1])
	insertModule(t, "ip_vs_lc")
	l.right()
}

// ip_vs is taken out under a running agent, with all that it holds, and put
// back: meanwhile the status says so, afterwards all is as wished.
func TestModuleGoesAndComesBack(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	services := hook(&p.kernel.conn)
	l := newLoop(t, p, 200*time.Millisecond)
	all := aFew()
	l.set(all...)
	l.right()

	loaded, err := os.ReadFile("/proc/modules")
	if err != nil {
		t.Fatal(err)
	}
	var schedulers []string
	for line := range strings.Lines(string(loaded)) {
		if name := strings.Fields(line)[0]; strings.HasPrefix(name, "ip_vs_") {
			schedulers = append(schedulers, name)
		}
	}
	comeBack := func() {
		insertModule(t, "ip_vs")
		for _, s := range schedulers {
			insertModule(t, s)
		}
	}
	t.Cleanup(comeBack)
	// The agent would put the services back, and they keep the module.
	hold, stopped := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(hold) })
	defer goOn()
	wait := func() { close(stopped); <-hold }
	services.before.Store(&wait)
	l.set(with(all[0], func(f *vip.Frontend) { f.Backends[0].Weight = 9 }))
	<-stopped
	run(t, lab.Director, "ipvsadm", "-C")
	for _, s := range schedulers {
		removeModule(t, s)
	}
	removeModule(t, "ip_vs")
	goOn()
	l.says(all[0].Key, "modprobe ip_vs")
	l.set(with(all[1], func(f *vip.Frontend) { f.Backends[0].Weight = 9 }))
	l.says(all[1].Key, "IPVS")
	comeBack()
	l.right()
}
