//go:build system || vm

package program

import (
	"strings"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/planetest"
)

// neighborhood is a host whose kernel also has the state of other programs.
type neighborhood struct {
	*host
	state   func() map[string]string // all of the kernel's that a load balancer may change
	foreign func(map[string]string) map[string]string
	backend [2]string                          // the names of two backends
	service func(name string, n ...int) string // with these of the backends, on port 8080
	reaches func(vip string, names ...string)  // waits until exactly these answer at port 8080
	before  map[string]string
}

// check checks that the state of others is the same as at the beginning.
func (n *neighborhood) check(step string) {
	n.t.Helper()
	planetest.SameState(n.t, step, n.foreign(n.state()), n.before)
}

func (n *neighborhood) clean(args ...string) (r result) {
	n.t.Helper()
	run := func() { r = command(n.t, append([]string{"dataplane", "clean", "--config", n.dir}, args...)...) }
	if n.inside == nil {
		run()
	} else {
		n.inside(run)
	}
	return r
}

// cleaned removes what is ours, and checks that nothing of it is left.
func (n *neighborhood) cleaned(step string) {
	n.t.Helper()
	r := n.clean()
	must.Equal(n.t, r.code, 0, "%s: exit code %d: %s%s", step, r.code, r.stdout, r.stderr)
	planetest.SameState(n.t, step, n.state(), n.before)
	if r := n.clean("--dry-run"); r.code != 0 || r.stdout != "" {
		n.t.Errorf("%s leaves: exit code %d\n%s%s", step, r.code, r.stdout, r.stderr)
	}
}

// live is the life of an agent, from its start to clean. During changes, a crash and a stop, the state of others remains
// identical to the byte. After clean nothing of ours is left. It calls started after the start, and returns the address of
// the service "web", which the second backend then has.
func (n *neighborhood) live(started func()) (web string) {
	n.t.Helper()
	a, b := n.backend[0], n.backend[1]
	n.write("services.d/web.toml", n.service("web", 0, 1))
	n.write("services.d/gone.toml", n.service("gone", 0))
	n.start()
	started()
	web = n.vip("web")
	n.reaches(web, a, b)
	n.check("the start")

	n.write("services.d/web.toml", n.service("web", 1)+"drain_timeout = \"0s\"\n")
	n.remove("services.d/gone.toml")
	n.write("services.d/new.toml", n.service("new", 0))
	n.ok("reload")
	n.reaches(web, b)
	n.reaches(n.vip("new"), a)
	n.check("changes")

	if r := n.clean(); r.code != 5 || !strings.Contains(r.stderr, "an agent runs") {
		n.t.Errorf("clean beside an agent: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	n.check("a refused clean")
	n.kill()
	n.check("kill -9")
	n.start()
	n.reaches(web, b)
	n.check("a restart")
	n.stop()
	n.check("a stop")

	whole := n.state()
	r := n.clean("--dry-run")
	if r.code != 10 || !strings.Contains(r.stdout, web+":8080/tcp") || !strings.Contains(r.stdout, "ironvip0") {
		n.t.Errorf("dry run: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	planetest.SameState(n.t, "a dry run", n.state(), whole)
	n.cleaned("clean")
	return web
}
