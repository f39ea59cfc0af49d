package command

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ironvip/ironvip/test/must"
)

func TestInputReadsNoMoreThanItMay(t *testing.T) {
	a := New(Environment{Stdin: zeros{}})
	const limit = 2 << 20
	_, _, problem := a.ReadInput("-", limit)
	if problem == nil || problem.Error() != "stdin: must be at most 2 MiB" {
		t.Errorf("%v", problem)
	}
	file := filepath.Join(t.TempDir(), "sparse")
	must.Succeed(t, os.WriteFile(file, nil, 0o644))
	must.Succeed(t, os.Truncate(file, limit+1))
	if _, _, problem = a.ReadInput(file, limit); problem == nil || problem.Place != file {
		t.Errorf("%v", problem)
	}
}

// zeros is an unlimited input.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
