package fleet

import (
	"context"
	"slices"

	"github.com/ironvip/ironvip/fleet/consulkv"
	"github.com/ironvip/ironvip/fleet/treestatus"
	"github.com/ironvip/ironvip/vip"
)

// survey reports foreign keys below the prefix, and leaves them alone. Those in the tree are found
// when it is read. It costs four requests, whatever is below the foreign keys. If one fails, the
// last result stays until the survey after the next full read.
func (t *Tree) survey(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	found := map[string]vip.Problem{}
	for level, ours := range t.keys.Levels() {
		names, _, err := t.o.KV.Level(ctx, level)
		if err != nil {
			return
		}
		for _, name := range names {
			if !slices.Contains(ours, name) {
				found[name] = treestatus.Foreign(level, name)
			}
		}
	}
	t.status.SetJunk(treestatus.Beside, found)
	bad, err := t.InvalidNodes(ctx)
	if err != nil {
		return
	}
	t.status.SetJunk(treestatus.InNodes, treestatus.Misplaced(bad))
}
