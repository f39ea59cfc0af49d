package agent

// Cause classifies why an operation without an agent failed.
type Cause int

const (
	CauseOther      Cause = iota
	CauseRunning          // an agent runs, and it must be stopped first
	CausePermission       // this user may not do it
)

// OfflineError is an error of an operation that works without an agent.
type OfflineError struct {
	Err   error
	Cause Cause
	Hint  string // what to do about it, or ""
}

func (e *OfflineError) Error() string { return e.Err.Error() }
func (e *OfflineError) Unwrap() error { return e.Err }
