package cli

import (
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
)

func TestHowApplied(t *testing.T) {
	applied := func(is string) []v1.Condition { return []v1.Condition{{Type: v1.ConditionApplied, Status: is}} }
	for _, test := range []struct {
		status v1.ServiceStatus
		want   string
	}{
		{v1.ServiceStatus{Applied: true, Conditions: applied(v1.True)}, "applied"},
		{v1.ServiceStatus{Applied: true, Conditions: applied(v1.False)}, "tried, not all of it applied"},
		{v1.ServiceStatus{Conditions: applied(v1.Unknown)}, "not applied yet"},
	} {
		if got := howApplied(test.status); got != test.want {
			t.Errorf("%+v: %q, want %q", test.status, got, test.want)
		}
	}
}
