//go:build linux

package netlab

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// List returns what the kernel lists. It asks again if something has changed meanwhile, because the list may lack
// something then.
func List[T any](t testing.TB, list func() ([]T, error)) []T {
	t.Helper()
	for {
		all, err := list()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
}
