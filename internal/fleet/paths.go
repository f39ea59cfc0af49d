package fleet

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ironvip/ironvip/internal/fleet/treelog"
)

// paths are the keys in Consul's KV store. "v2" is the version of the layout: a layout that older
// releases can't read gets another number.
type paths struct {
	prefix    string
	base      string
	tree      string // values, by folder and key
	mark      string // names the fleet
	log       string
	head      string // the newest entry of the log
	turn      string // of a writer that has collided often
	ring      string // the last entries of the log, by segment and slot
	snapshots string // the snapshot of the tree
	snapshot  string // describes it, and is its writer's lock
	parts     string // of it
	hosts     string // a lock for each host's id
	nodes     string // and for each node's name, with its row
	leader    string
}

const markName = ".fleet"

func newPaths(prefix string) paths {
	base := prefix + "/v2/"
	return paths{prefix: prefix + "/", base: base, tree: base + "tree/", mark: base + "tree/" + markName, log: base + "log/", head: base + "log/head", turn: base + "log/turn",
		ring: base + "log/ring/", snapshots: base + "snapshot/", snapshot: base + "snapshot/head", parts: base + "snapshot/parts/", hosts: base + "hosts/", nodes: base + "nodes/", leader: base + "leader"}
}

// slot is the key of the entry of that number in the ring.
func (p paths) slot(seq uint64) string { return p.ring + treelog.Slot(seq) }

// part is the key of a part of the snapshot, numbered from 0.
func (p paths) part(n int) string { return p.parts + strconv.Itoa(n) }

// checkKey validates a key of a folder.
func checkKey(key string) error {
	switch {
	case key == "":
		return errors.New("a key is empty")
	case len(key) > MaxKey:
		return fmt.Errorf("key %.40q... has %d bytes, more than %d", key, len(key), MaxKey)
	case !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("key %q has characters that can't be shown", key)
	case strings.HasPrefix(key, "/") || strings.HasSuffix(key, "/"):
		return fmt.Errorf("key %q begins or ends with a slash", key)
	}
	return nil
}
