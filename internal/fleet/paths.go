package fleet

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// paths are the places in Consul's KV store. The number is that of the layout:
// one that old releases could not read would be kept elsewhere.
type paths struct {
	prefix  string
	base    string
	tree    string // values, by folder and key
	mark    string // says whose tree it is
	journal string // the newest entry of each lane
	slots   string // the last entries, by lane and slot
	hosts   string // a lock for each host's id
	nodes   string // and for each node's name, with its row
	leader  string
}

const markName = ".fleet"

func newPaths(prefix string) paths {
	base := prefix + "/v1/"
	return paths{prefix: prefix + "/", base: base, tree: base + "tree/", mark: base + "tree/" + markName, journal: base + "journal/",
		slots: base + "slots/", hosts: base + "hosts/", nodes: base + "nodes/", leader: base + "leader"}
}

func (p paths) host(id string) string { return p.hosts + id }

func (p paths) node(name string) string { return p.nodes + url.PathEscape(name) }

func (p paths) head(lane string) string { return p.journal + lane }

// slot is where a lane keeps the entry of that number: slots are taken in turn.
func (p paths) slot(lane string, seq uint64) string {
	return p.lane(lane) + strconv.FormatUint((seq-1)%laneSlots+1, 10)
}

// lane is where all slots of a lane are.
func (p paths) lane(lane string) string { return p.slots + lane + "/" }

// parseHead is the reverse of head.
func (p paths) parseHead(key string) (lane string, ok bool) {
	lane, ok = strings.CutPrefix(key, p.journal)
	return lane, ok && lane != "" && !strings.Contains(lane, "/")
}

// checkKey says what is wrong with a key of a folder.
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
