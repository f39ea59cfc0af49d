package fleet

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Every host finds out whether its tables are those of the leader. The leader reads the whole tree
// now and then, for what was written without the log, and then appends an entry with the digest of
// each folder. A host that has another digest at that place of the log reads the whole tree too.

// digest stands for all entries of a folder: the exclusive or of their hashes, so that a change
// costs two hashes.
type digest uint64

// rereadWithin is the time within which hosts with another digest read the tree.
const rereadWithin = 10 * time.Second

// flip adds an entry to the digest, or removes it.
func (d *digest) flip(path string, index uint64) {
	var room [8 + 128]byte
	text := binary.BigEndian.AppendUint64(room[:0], index)
	*d ^= digest(xxhash.Sum64(append(text, path...)))
}

// MarshalText implements encoding.TextMarshaler.
func (d digest) MarshalText() ([]byte, error) {
	return hex.AppendEncode(nil, binary.BigEndian.AppendUint64(nil, uint64(d))), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *digest) UnmarshalText(text []byte) error {
	raw, err := hex.DecodeString(string(text))
	if err != nil || len(raw) != 8 {
		return fmt.Errorf("digest invalid: %.40q", text)
	}
	*d = digest(binary.BigEndian.Uint64(raw))
	return nil
}

// isExact reports whether the tables are exactly the tree at their place in the log. They are ahead
// of it after a key was read on its own, until the log reaches that. The caller holds mu.
func (t *Tree) isExact() bool { return t.newest <= t.at.index }

// digests returns the digest of each folder, or nil if the tables aren't exact. The caller holds
// mu.
func (t *Tree) digests() map[string]digest {
	if !t.isExact() {
		return nil
	}
	all := make(map[string]digest, len(t.folders))
	for name, f := range t.folders {
		all[name] = f.digest
	}
	return all
}

// compare compares the tables with the digests of an entry, if they are at its place in the log. It
// has the whole tree read if they differ. Folders that only one of the two has don't count: it may
// have another release. The caller holds mu.
func (t *Tree) compare(e entry) {
	if e.digests == nil || e.before != t.at.index || !t.isExact() || !t.differs.IsZero() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(e.digests)) {
		if f := t.folders[name]; f != nil && f.digest != e.digests[name] {
			t.log.Warn("tables differ from the leader's: reading the whole tree", "folder", name)
			t.differs = time.Now().Add(rand.N(rereadWithin))
			t.interrupt()
			return
		}
	}
}
