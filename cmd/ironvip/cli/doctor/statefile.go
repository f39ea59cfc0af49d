package doctor

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// stateFile checks the file with which the agent would start. A running agent has locked
// and verified it.
func stateFile(h Host, w Want) []Finding {
	path := filepath.Join(w.StateDir, store.FileName)
	err := h.State(path)
	var p vip.Problem
	switch {
	case err == nil:
		return []Finding{{OK, "state_file", "state file " + path + " is intact", ""}}
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{{OK, "state_file", "no state file " + path + ": the agent starts without leases", ""}}
	case errors.Is(err, store.ErrLocked):
		return []Finding{{OK, "state_file", "state file " + path + " is in use by an agent, which found it intact", ""}}
	case errors.Is(err, fs.ErrPermission):
		return []Finding{{OK, "state_file", "state file " + path + " is not readable for this user: run ironvip doctor as root to check it", ""}}
	case errors.As(err, &p): // the agent does not start: it is damaged, or of another version
		return []Finding{{Fail, "state_file", p.Error(), p.Hint}}
	}
	return []Finding{{Warn, "state_file", err.Error(), ""}}
}
