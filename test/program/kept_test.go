//go:build system || vm

package program

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/statecopy"
)

// keeps waits until the agent has stored a wanted value on its disk, which it does with a delay.
func (h *host) keeps(bucket, key string, wanted func(json string) bool) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("%s is kept in %q", key, bucket), func() error {
		return statecopy.Look(filepath.Join(h.dir, "state"), func(db *store.DB) error {
			value, there, err := store.NewBucket[json.RawMessage](db, bucket).Get(key)
			if err == nil && (!there || !wanted(string(value))) {
				err = fmt.Errorf("there: %v: %s", there, value)
			}
			return err
		})
	})
}
