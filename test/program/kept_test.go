//go:build system || vm

package program

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/must"
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

// forgets empties a bucket of the state file, while no agent runs.
func (h *host) forgets(bucket string) {
	h.t.Helper()
	db := must.Get(store.Open(filepath.Join(h.dir, "state", store.FileName)))(h.t)
	defer db.Close()
	b := store.NewBucket[json.RawMessage](db, bucket)
	all, err := b.All()
	if err == nil {
		err = b.Write(nil, slices.Collect(maps.Keys(all)))
	}
	must.Succeed(h.t, err)
}
