package usage

// Partly is the error of a frontend that serves clients nevertheless, such as one with a backend that the kernel rejects.
type Partly struct{ Err error }

func (p Partly) Error() string { return p.Err.Error() }

// Unwrap returns the error without the statement that clients are served.
func (p Partly) Unwrap() error { return p.Err }
