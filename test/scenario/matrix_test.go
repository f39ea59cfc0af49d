//go:build linux

package scenario

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/must"
)

var update = flag.Bool("update", false, "write docs/dataplanes.md")

const document = "../../docs/dataplanes.md"

// TestDocument compares docs/dataplanes.md with the dataplanes.
func TestDocument(t *testing.T) {
	want := must.Get(matrix())(t)
	if *update {
		must.Succeed(t, os.WriteFile(document, []byte(want), 0o644))
	}
	have := must.Get(os.ReadFile(document))(t)
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf("%s is stale: run go test ./test/scenario -run TestDocument -update (-have +want)\n%s", document, diff)
	}
}

const intro = "# Dataplane features\n\n" +
	"This page says which settings of a service work with which dataplane. The status of a service names the settings that its\n" +
	"dataplane refuses. [IPVS](ipvs.md), [nftables](nft.md) and [userspace proxy](proxy.md) describe the dataplanes.\n" +
	"`go test ./test/scenario -run TestDocument -update` writes this page; tests with real connections show every \"yes\".\n"

// matrix generates the document.
func matrix() (string, error) {
	var b strings.Builder
	b.WriteString(intro)
	for _, g := range groups {
		var common []string
		var rows []string              // of cells
		names := map[string][]string{} // of the features that have a row's cells
		for _, f := range g.features {
			row, yes := "", 0
			for _, d := range dataplanes {
				cell, err := d.cell(f)
				if err != nil {
					return "", err
				}
				if row += " | " + cell; cell == "yes" {
					yes++
				}
			}
			if yes == len(dataplanes) {
				common = append(common, f.name)
				continue
			}
			if names[row] == nil {
				rows = append(rows, row)
			}
			names[row] = append(names[row], f.name)
		}
		fmt.Fprintf(&b, "\n## %s\n\nEvery dataplane: %s.\n", g.title, strings.Join(common, "; "))
		if rows != nil {
			b.WriteString("\n|")
			for _, d := range dataplanes {
				fmt.Fprintf(&b, " | `%s`", d.name)
			}
			b.WriteString(" |\n|" + strings.Repeat("---|", len(dataplanes)+1) + "\n")
			for _, row := range rows {
				b.WriteString("| " + strings.Join(names[row], "; ") + row + " |\n")
			}
		}
	}
	b.WriteString(changesNote + kernelsIntro)
	b.WriteString("\n| | since Linux | used by | without it |\n|---|---|---|---|\n")
	for _, f := range linux.All() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.Name, f.First(), f.Use, f.Without)
	}
	return b.String(), nil
}

// changesNote follows the last group.
const changesNote = "\nWhen the drain of a deleted service ends, `proxy` resets the connections that are still open. With `ipvs` and\n" +
	"`nft` they end without an answer.\n"

const kernelsIntro = "\n## Kernels\n\n" +
	"ironvip is tested with Debian's kernels 5.10, 6.1 and 6.12. `ipvs` and `nft` have the features above on each of them;\n" +
	"`proxy` needs sockets only. An older kernel lacks the following, and nothing of it is required. A distribution may have\n" +
	"it in an older kernel; `ironvip doctor` tries it.\n"

// cell describes a dataplane's support of a feature. Of a refusal, it has the reason without the setting, which the row names.
func (d *dataplane) cell(f *feature) (string, error) {
	why, err := d.refuses(f)
	if err != nil {
		return "", err
	}
	if why != "" {
		_, what, _ := strings.Cut(why, " does not support ")
		what, _, _ = strings.Cut(what, "; nor ") // the first reason is enough
		if i := strings.LastIndex(what, ": "); i >= 0 {
			return "no" + strings.ReplaceAll(what[i:], "|", `\|`), nil
		}
		return "no", nil
	}
	if does := f.does[d.name]; does != "" {
		return does, nil
	}
	return "yes", nil
}

// Every feature has, on each dataplane that supports it, a scenario that runs to its end there.
func TestEveryFeatureIsShown(t *testing.T) {
	names := map[string]bool{}
	listed := map[*feature]bool{}
	for _, g := range groups {
		for _, f := range g.features {
			listed[f] = true
		}
	}
	can := func(d *dataplane, f *feature) bool {
		why := must.Get(d.refuses(f))(t)
		return why == ""
	}
	shown := map[*feature]map[*dataplane]bool{}
	for _, s := range every() {
		if names[s.name] {
			t.Errorf("two scenarios are named %q", s.name)
		}
		names[s.name] = true
		for _, f := range s.shows {
			if !listed[f] {
				t.Errorf("%q shows %q, which is in no group", s.name, f.name)
			}
			if shown[f] == nil {
				shown[f] = map[*dataplane]bool{}
			}
			for _, d := range dataplanes {
				if !slices.ContainsFunc(s.shows, func(f *feature) bool { return !can(d, f) }) {
					shown[f][d] = true
				}
			}
		}
	}
	for f := range listed {
		if f.does != nil && len(f.does) != len(dataplanes) {
			t.Errorf("%q says of some dataplanes what they do, and not of all", f.name)
		}
		for _, d := range dataplanes {
			if can(d, f) && !shown[f][d] {
				t.Errorf("%s has %q, and no scenario shows it", d.name, f.name)
			}
		}
		if shown[f] == nil {
			t.Errorf("no scenario shows %q", f.name)
		}
	}
}
