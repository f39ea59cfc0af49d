package wait_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/wait"
)

// fake is a testing.TB that records a failure.
type fake struct {
	testing.TB
	failure string
}

func (f *fake) Error(args ...any)                 { f.failure = fmt.Sprint(args...) }
func (f *fake) Fatalf(format string, args ...any) { f.failure = fmt.Sprintf(format, args...) }

func TestFailsWithTheState(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &fake{TB: t}
		start := time.Now()
		wait.Until(f, "a miracle", func() bool { return false }, func() any { return "nothing happened" })
		if took := time.Since(start); took < wait.Timeout || took > wait.Timeout+time.Second {
			t.Errorf("took %s", took)
		}
		if !strings.Contains(f.failure, "a miracle: not within 2m0s") || !strings.Contains(f.failure, "nothing happened") {
			t.Errorf("failure %q", f.failure)
		}
		f.failure = ""
		wait.Within(f, time.Second, "success", func() error { return errors.New("not yet") })
		expect.Equal(t, f.failure, "success: not within 1s: not yet", "failure")
	})
}

// A wait that ends by its limit fails the test, also if its caller accepts the error.
func TestOrErrorFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &fake{TB: t}
		if err := wait.OrError(f, time.Second, "nothing", func() error { return nil }); err != nil || f.failure != "" {
			t.Errorf("%v, failure %q", err, f.failure)
		}
		want := errors.New("not yet")
		err := wait.OrError(f, time.Second, "success", func() error { return want })
		if !errors.Is(err, want) || f.failure != "success: not within 1s: not yet" {
			t.Errorf("%v, failure %q", err, f.failure)
		}
	})
}
