// Package inherit gives a test the listening sockets of a next process.
package inherit

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/test/must"
)

// From returns the set of a process that has inherited copies of the sockets of a set.
func From(t testing.TB, set *sockets.Set) *sockets.Set {
	t.Helper()
	var fds []int
	for _, f := range must.Get(set.Files())(t) {
		fds = append(fds, must.Get(unix.Dup(int(f.Fd())))(t))
		must.Succeed(t, f.Close())
	}
	next := &sockets.Set{Control: set.Control}
	must.Empty(t, next.Inherit(fds))
	return next
}
