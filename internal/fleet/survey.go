package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// survey looks at what lies below the prefix beside the tree and the journal,
// which are read anyway: what isn't ours is told, and left alone. It costs two
// questions, whatever lies further below. Without an answer, what is known
// stays; there is another survey after the next reading.
func (t *Tree) survey(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found := map[string]vip.Problem{}
	for level, ours := range t.paths.levels() {
		names, err := t.o.KV.Level(ctx, level)
		if err != nil {
			return
		}
		for _, name := range names {
			if !slices.Contains(ours, name) {
				found[name] = strange(level, name)
			}
		}
	}
	t.status.setJunk(beside, found)
}

// levels are the places that hold nothing but what is named here.
func (p paths) levels() map[string][]string {
	return map[string][]string{
		p.prefix: {p.base},
		p.base:   {p.tree, p.journal, p.slots, p.hosts, p.nodes, p.leader},
	}
}

var layout = regexp.MustCompile(`^v[0-9]+/$`)

// strange says what is wrong with what isn't ours at a level: a key, or with a
// slash at its end all keys that begin so.
func strange(level, name string) vip.Problem {
	if layout.MatchString(name[len(level):]) {
		return keyProblem(name, errors.New("another release of ironvip keeps its fleet there, of which this one knows nothing"),
			"bring all hosts to the same release")
	}
	hint := keepElsewhere + removal(name)
	if strings.HasSuffix(name, "/") {
		hint = "what is below the prefix is this fleet's: keep it elsewhere, another fleet too, or if nobody uses it remove all of it" + removalOfAll(name)
	}
	return keyProblem(name, errors.New("ironvip has nothing of that name"), hint)
}

const keepElsewhere = "what is below the prefix is ironvip's: keep it elsewhere, or remove it"

// misplaced is what is wrong with keys that are in a place of ours and belong to
// nobody there.
func misplaced(junk map[string]error) map[string]vip.Problem {
	out := make(map[string]vip.Problem, len(junk))
	for key, err := range junk {
		out[key] = keyProblem(key, err, keepElsewhere+removal(key))
	}
	return out
}

// noNode says why a row among the nodes is none.
func (p paths) noNode(row Pair) error {
	var n Node
	if err := json.Unmarshal(row.Value, &n); err != nil {
		return fmt.Errorf("not a node's row: %w", err)
	}
	if row.Key != p.node(n.Name) {
		return fmt.Errorf("not a node's row: it names the node %q", n.Name)
	}
	return nil
}
