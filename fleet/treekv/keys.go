package treekv

import (
	"strconv"

	"github.com/ironvip/ironvip/fleet/treelog"
)

// Keys are the keys in the store. "v2" is the version of the layout: a layout that older
// releases can't read gets another number.
type Keys struct {
	Tree     string // values, by folder and key
	Mark     string // names the fleet
	Head     string // the newest entry of the log
	Turn     string // of a writer that has collided often
	Ring     string // the last entries of the log, by segment and slot
	Snapshot string // describes the snapshot of the tree, and is its writer's lock
	Parts    string // of the snapshot
	Hosts    string // a lock for each host's id
	Nodes    string // and for each node's name, with its row
	Leader   string
}

// MarkName is the path of the mark below the tree.
const MarkName = ".fleet"

// NewKeys returns the keys below a prefix, which has no slashes at its ends.
func NewKeys(prefix string) Keys {
	base := prefix + "/v2/"
	return Keys{Tree: base + "tree/", Mark: base + "tree/" + MarkName, Head: base + "log/head", Turn: base + "log/turn", Ring: base + "log/ring/",
		Snapshot: base + "snapshot/head", Parts: base + "snapshot/parts/", Hosts: base + "hosts/", Nodes: base + "nodes/", Leader: base + "leader"}
}

// Slot is the key of the entry of that number in the ring.
func (k Keys) Slot(seq uint64) string { return k.Ring + treelog.Slot(seq) }

// part is the key of a part of the snapshot, numbered from 0.
func (k Keys) part(n int) string { return k.Parts + strconv.Itoa(n) }
