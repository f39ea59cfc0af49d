//go:build system && long

package routers_test

import "testing"

// GoBGP keeps the routes of a speaker that restarts.
func TestRestartWithGoBGP(t *testing.T) {
	families(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		s, rib := newLab(t).withGoBGP(t, v6, 4200065010)
		rib(vip6.String(), true)
		s.Kill()
		rib("S*", true) // stale
		rib(vip6.String(), true)
		s.StartAgain()
		s.AwaitUp()
		rib("S*", false)
		rib(vip6.String(), true)
	})
}
