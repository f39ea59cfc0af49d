//go:build vm || servers

package program

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ironvip/ironvip/state"
)

// keeps waits until the agent has a value on its disk that is as wanted, which it
// writes behind what it does. It looks at a copy of the file, which is the running
// agent's alone.
func (h *host) keeps(bucket, key string, wanted func(json string) bool) {
	h.t.Helper()
	copied := filepath.Join(h.t.TempDir(), "ironvip.db")
	h.eventually(fmt.Sprintf("%s is kept in %q", key, bucket), func() (err error) {
		text, err := os.ReadFile(filepath.Join(h.dir, "state", "ironvip.db"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			return err
		}
		db, err := state.Open(copied) // unless it was written to meanwhile
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		value, there, err := state.NewBucket[json.RawMessage](db, bucket).Get(key)
		if err == nil && (!there || !wanted(string(value))) {
			err = fmt.Errorf("there: %v: %s", there, value)
		}
		return err
	})
}
