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

// paths are the keys in Consul's KV store. "v1" is the version of the layout: a layout that older
// releases can't read gets another number.
type paths struct {
	prefix  string
	base    string
	tree    string // values, by folder and key
	mark    string // names the fleet
	journal string // the newest entry of each stream
	slots   string // the last entries, by stream and slot
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

func (p paths) head(stream string) string { return p.journal + stream }

// slot is the key of a stream's entry of that number. The slots are a ring.
func (p paths) slot(stream string, seq uint64) string {
	return p.stream(stream) + strconv.FormatUint((seq-1)%streamSlots+1, 10)
}

// stream is the prefix of a stream's slots.
func (p paths) stream(stream string) string { return p.slots + stream + "/" }

// parseHead is the reverse of head.
func (p paths) parseHead(key string) (stream string, ok bool) {
	stream, ok = strings.CutPrefix(key, p.journal)
	return stream, ok && stream != "" && !strings.Contains(stream, "/")
}

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
