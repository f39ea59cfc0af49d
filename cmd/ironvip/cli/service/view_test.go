package service

import (
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/test/expect"
)

func TestHowApplied(t *testing.T) {
	for _, test := range []struct {
		status v1.ServiceStatus
		want   string
	}{
		{v1.ServiceStatus{Applied: true}, "applied"},
		{v1.ServiceStatus{Applied: true, Problems: make([]v1.Problem, 1)}, "applied"}, // the problems are shown below
		{v1.ServiceStatus{Problems: make([]v1.Problem, 1)}, "not applied yet"},
	} {
		expect.Equal(t, howApplied(test.status), test.want, "%+v", test.status)
	}
}

// Backups are counted apart, unless all backends are backups. Panic mode and a hold are a part of
// the state.
func TestCountsAndStates(t *testing.T) {
	be := func(usable, backup bool) v1.BackendStatus { return v1.BackendStatus{Usable: usable, Backup: backup} }
	leaving := be(false, false)
	leaving.LeavingAt = new(time.Time)
	for _, tc := range []struct {
		status       v1.ServiceStatus
		count, state string
	}{
		{v1.ServiceStatus{State: v1.StateDegraded, Usable: 2, Backends: []v1.BackendStatus{be(true, false), be(true, false), be(false, false), leaving}}, "2/3", "degraded"},
		{v1.ServiceStatus{State: v1.StateHealthy, Usable: 2, Backends: []v1.BackendStatus{be(true, false), be(true, true)}}, "1/1 +1 backup", "healthy"},
		{v1.ServiceStatus{State: v1.StateDegraded, Usable: 1, Backends: []v1.BackendStatus{be(false, false), be(true, true), be(false, true)}}, "0/1 +1/2 backup", "degraded"},
		{v1.ServiceStatus{State: v1.StateDegraded, Usable: 1, Backends: []v1.BackendStatus{be(true, true), be(false, true)}}, "1/2", "degraded"},
		{v1.ServiceStatus{State: v1.StateDegraded, Panic: true}, "0/0", "degraded, panic"},
		{v1.ServiceStatus{State: v1.StateHealthy, Full: true}, "0/0", "healthy, full"},
		{v1.ServiceStatus{State: v1.StateDegraded, Held: 2}, "0/0", "degraded, held"},
	} {
		if count, state := backendCount(tc.status), serviceState(tc.status).Text; count != tc.count || state != tc.state {
			t.Errorf("%s, %s; want %s, %s", count, state, tc.count, tc.state)
		}
	}
}

// A backend shows whether it is a backup, and an unhealthy one whether it is in use.
func TestBackendCells(t *testing.T) {
	now := time.Date(2026, 11, 8, 12, 13, 7, 0, time.UTC)
	a := &app{command.New(command.Environment{Now: func() time.Time { return now }})}
	soon := now.Add(9 * time.Second)
	for _, tc := range []struct {
		b            v1.BackendStatus
		state, check string
	}{
		{v1.BackendStatus{State: "ready", Backup: true, Health: "healthy", Check: "tcp"}, "ready, backup", "tcp healthy"},
		{v1.BackendStatus{State: "ready", Backup: true, Serving: true, Health: "healthy", Check: "tcp"}, "ready, backup in use", "tcp healthy"},
		{v1.BackendStatus{State: "ready", Serving: true, Health: "unhealthy", Check: "tcp"}, "ready", "tcp unhealthy, in use"},
		{v1.BackendStatus{State: "ready", Health: "unhealthy", Check: "tcp"}, "ready", "tcp unhealthy"},
		{v1.BackendStatus{State: "ready", Serving: true, Held: true, HeldUntil: &soon, Health: "healthy", Check: "http"}, "ready", "http failing, held for 9s"},
	} {
		if state, check := backendState(tc.b), a.checkCell(tc.b).Text; state != tc.state || check != tc.check {
			t.Errorf("%q, %q; want %q, %q", state, check, tc.state, tc.check)
		}
	}
}
