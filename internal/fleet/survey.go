package fleet

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/vip"
)

// survey reports foreign keys below the prefix, and leaves them alone. Those in the tree are found
// when it is read. It costs four requests, whatever is below the foreign keys. If one fails, the
// last result stays until the survey after the next full read.
func (t *Tree) survey(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	found := map[string]vip.Problem{}
	for level, ours := range t.paths.levels() {
		names, _, err := t.o.KV.Level(ctx, level)
		if err != nil {
			return
		}
		for _, name := range names {
			if !slices.Contains(ours, name) {
				found[name] = foreign(level, name)
			}
		}
	}
	t.status.setJunk(beside, found)
	bad, err := t.InvalidNodes(ctx)
	if err != nil {
		return
	}
	t.status.setJunk(inNodes, misplaced(bad))
}

// levels are the folders that are all ironvip's, with what is expected in each.
func (p paths) levels() map[string][]string {
	return map[string][]string{
		p.prefix: {p.base},
		p.base:   {p.tree, p.log, p.snapshots, p.hosts, p.nodes, p.leader},
		p.log:    {p.head, p.turn, p.ring},
	}
}

var layout = regexp.MustCompile(`^v[0-9]+/$`)

// foreign returns the problem of a foreign key at a level, or of a foreign folder, whose name ends
// with a slash.
func foreign(level, name string) vip.Problem {
	if layout.MatchString(name[len(level):]) {
		return keyProblem(name, errors.New("layout not supported: another release of ironvip keeps its fleet there"),
			"bring all hosts to the same release")
	}
	hint := keepElsewhere + removal(name)
	if strings.HasSuffix(name, "/") {
		hint = "move it out of the prefix, which belongs to this fleet, or if nobody uses it remove all of it" + removalOfAll(name)
	}
	return keyProblem(name, errors.New("unknown key: ironvip doesn't use it"), hint)
}

const keepElsewhere = "move it out of the prefix, which belongs to ironvip, or remove it"

// misplaced returns the problems of keys that don't belong where they are.
func misplaced(junk map[string]error) map[string]vip.Problem {
	out := make(map[string]vip.Problem, len(junk))
	for key, err := range junk {
		out[key] = keyProblem(key, err, keepElsewhere+removal(key))
	}
	return out
}
