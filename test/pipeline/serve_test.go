package pipeline

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// strictPlane is a dataplane that ignores something of every service.
type strictPlane struct{ *reconciletest.Plane }

func (strictPlane) Ignored(*vip.Service) []vip.Problem {
	return []vip.Problem{{Code: vip.CodeIneffective, Message: "no effect there"}}
}

// After another dataplane serves, services show what has no effect there, and no longer what had none before.
func TestServe(t *testing.T) {
	l := newLine(t, 3)
	shows := func(n int) {
		t.Helper()
		wait.For(t, fmt.Sprintf("%d services show a setting without effect", n), func() error {
			shown := 0
			for _, row := range l.Compiled.All() {
				shown += len(row.Problems)
			}
			if shown != n {
				return fmt.Errorf("%d do", shown)
			}
			return nil
		})
	}
	strict := strictPlane{reconciletest.NewPlane()}
	must.Succeed(t, l.Serve(t.Context(), strict, nil))
	expect.Equal(t, strict.Len(), 3, "frontends of the next dataplane")
	shows(3)
	must.Succeed(t, l.Serve(t.Context(), reconciletest.NewPlane(), nil))
	shows(0)
}
