package bgp

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// record remembers, over a restart of this process, the peers that keep the routes of this run. The
// R bit of graceful restart is set for these peers only: a router that has itself restarted would
// otherwise not wait for this host's routes, and remove them from its kernel.
//
// A file that can't be read or written only costs the R bit.
type record struct {
	path string // "": nothing is remembered
	log  *slog.Logger

	mu      sync.Mutex
	before  map[string]bool // of the earlier run
	current map[string]bool // the content of the file
}

type recordFile struct {
	Peers []string `json:"peers"`
}

// maxRecord bounds the file that is read, in bytes.
const maxRecord = 1 << 20

func openRecord(path string, log *slog.Logger) *record {
	r := &record{path: path, log: log, before: map[string]bool{}, current: map[string]bool{}}
	if path == "" {
		return r
	}
	b, err := os.ReadFile(path)
	var f recordFile
	if err == nil && len(b) <= maxRecord {
		err = json.Unmarshal(b, &f)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("record of graceful restart unreadable: routers are not informed of this restart", "file", path, "error", err)
	}
	for _, name := range f.Peers {
		r.before[name], r.current[name] = true, true
	}
	return r
}

// has reports whether the peer kept routes when this process started.
func (r *record) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.before[name]
}

// set records whether the peer keeps the routes when this process ends.
func (r *record) set(name string, keeps bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path == "" || r.current[name] == keeps {
		return
	}
	if keeps {
		r.current[name] = true
	} else {
		delete(r.current, name)
	}
	b, err := json.Marshal(recordFile{slices.Sorted(maps.Keys(r.current))})
	if err == nil {
		// The rename makes it atomic. It need not survive a crash of the host, so it isn't synced.
		temporary := filepath.Join(filepath.Dir(r.path), "."+filepath.Base(r.path))
		if err = os.WriteFile(temporary, b, 0o600); err == nil {
			err = os.Rename(temporary, r.path)
		}
	}
	if err != nil {
		r.log.Warn("record of graceful restart not written", "file", r.path, "error", err)
	}
}
