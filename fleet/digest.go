package fleet

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/treelog"
)

// Every host finds out whether its tables are those of the leader. The leader reads the whole tree
// now and then, for what was written without the log, and then appends an entry with the digest of
// each folder. A host that has another digest at that place of the log reads the whole tree too.

// rereadWithin is the time within which hosts with another digest read the tree.
const rereadWithin = 10 * time.Second

// comparison is what of a tree concerns the comparison of its tables with others. The tree's lock
// guards it.
type comparison struct {
	newest   uint64    // the highest index of an entry or removal in the tables
	differs  time.Time // when to read the tree because the leader's digests differ; zero: they don't
	searched uint64    // the tree's index when this host has last compared all of it with the log
}

// isExact reports whether the tables are exactly the tree at their place in the log. They are ahead
// of it after a key was read on its own, until the log reaches that. The caller holds mu.
func (t *Tree) isExact() bool { return t.compared.newest <= t.at.Index }

// digests returns the digest of each folder, or nil if the tables aren't exact. The caller holds
// mu.
func (t *Tree) digests() map[string]treelog.Digest {
	if !t.isExact() {
		return nil
	}
	all := make(map[string]treelog.Digest, len(t.folders))
	for name, f := range t.folders {
		all[name] = f.digest
	}
	return all
}

// compare compares the tables with the digests of an entry, if they are at its place in the log. It
// has the whole tree read if they differ. Folders that only one of the two has don't count: it may
// have another release. The caller holds mu.
func (t *Tree) compare(e treelog.Entry) {
	if e.Digests == nil || e.Before != t.at.Index || !t.isExact() || !t.compared.differs.IsZero() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(e.Digests)) {
		if f := t.folders[name]; f != nil && f.digest != e.Digests[name] {
			t.log.Warn("tables differ from the leader's: reading the whole tree", "folder", name)
			t.compared.differs = time.Now().Add(rand.N(rereadWithin))
			t.endHeld()
			return
		}
	}
}
