// Package wait lets tests wait for a state: it polls the state and fails the test after a time that
// no healthy machine needs. A wait ends with success or the test fails. In a synctest bubble, that time
// is fake.
package wait

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// Timeout is how long a test waits by default. Reply is how long one request waits for its answer, so that a request
// that was lost is repeated within a wait. A busy machine may be 15 times as slow as a quiet one, and the VM's emulated
// processor is an order of magnitude slower than the host's.
var Timeout, Reply = 2 * time.Minute, 30 * time.Second

func init() {
	if os.Getenv("IRONVIP_VM") != "" {
		Timeout, Reply = 10*time.Minute, 2*time.Minute
	}
}

// For calls check until it returns nil. After Timeout, the test fails with the last error of check.
func For(t testing.TB, what string, check func() error) {
	t.Helper()
	Within(t, Timeout, what, check)
}

// Within is For with another timeout.
func Within(t testing.TB, timeout time.Duration, what string, check func() error) {
	t.Helper()
	if err := poll(timeout, check); err != nil {
		t.Fatalf("%s: not within %s: %v", what, timeout, err)
	}
}

// OrError is Within for goroutines other than the test's, and for callers that have something to do
// after a failure. The test fails and goes on, and OrError returns the error.
func OrError(t testing.TB, timeout time.Duration, what string, check func() error) error {
	t.Helper()
	err := poll(timeout, check)
	if err != nil {
		err = fmt.Errorf("%s: not within %s: %w", what, timeout, err)
		t.Error(err)
	}
	return err
}

// Until waits until ok returns true. After Timeout, the test fails and prints the values that state
// returns.
func Until(t testing.TB, what string, ok func() bool, state ...func() any) {
	t.Helper()
	For(t, what, func() error {
		if ok() {
			return nil
		}
		return unmet(state)
	})
}

// unmet is the error of a condition that is false.
type unmet []func() any

func (u unmet) Error() string {
	text := "the condition is false"
	for _, state := range u {
		text += fmt.Sprintf(", %v", state())
	}
	return text
}

// poll calls check until it returns nil. After the timeout, it returns the last error of check. The
// pauses grow from 1 to 20 ms. No caller may accept that error: a wait that ends by its limit hides a
// defect.
func poll(timeout time.Duration, check func() error) error {
	late := time.After(timeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-late:
			return err
		case <-time.After(pause):
		}
	}
}
