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
	"`go test ./test/scenario -run TestDocument -update` generates this page. A \"no\" is followed by the\n" +
	"dataplane's refusal, as the status of a service shows it. Everything else is shown by the\n" +
	"scenarios in the last column, with real connections. [testing-vm.md](testing-vm.md) describes how to\n" +
	"add a scenario; [proxy.md](proxy.md), [ipvs.md](ipvs.md) and [nft.md](nft.md) give the reasons.\n"

// matrix generates the document.
func matrix() (string, error) {
	var b strings.Builder
	b.WriteString(intro)
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n|", g.title)
		for _, d := range dataplanes {
			fmt.Fprintf(&b, " | `%s`", d.name)
		}
		b.WriteString(" | shown by |\n|" + strings.Repeat("---|", len(dataplanes)+2) + "\n")
		for _, f := range g.features {
			fmt.Fprintf(&b, "| %s", f.name)
			for _, d := range dataplanes {
				cell, err := d.cell(f)
				if err != nil {
					return "", err
				}
				fmt.Fprintf(&b, " | %s", cell)
			}
			var names []string
			for _, s := range every() {
				if slices.Contains(s.shows, f) {
					names = append(names, s.name)
				}
			}
			fmt.Fprintf(&b, " | %s |\n", strings.Join(names, "; "))
		}
	}
	b.WriteString(changesNote + kernelsIntro)
	fmt.Fprintf(&b, "\n| | since Linux | %s | used by | without it |\n|%s\n", strings.Join(kernels, " | "), strings.Repeat("---|", len(kernels)+4))
	for _, f := range linux.All() {
		fmt.Fprintf(&b, "| %s | %s", f.Name, f.First())
		for _, k := range kernels {
			has := "no"
			if f.In(k) {
				has = "yes"
			}
			b.WriteString(" | " + has)
		}
		fmt.Fprintf(&b, " | %s | %s |\n", f.Use, f.Without)
	}
	return b.String(), nil
}

// kernels are those of "make kernels".
var kernels = []string{"5.10", "6.1", "6.12"}

// changesNote follows the last group.
const changesNote = "\nWhen the drain of a deleted service ends, `proxy` resets the connections that are still open; with `ipvs` and\n" +
	"`nft` they end without an answer, because the route to the VIP goes with the service.\n"

const kernelsIntro = "\n## Kernels\n\n" +
	"`make kernels` runs the tests of the kernel VM on Debian's cloud kernels 5.10 (bullseye), 6.1 (bookworm)\n" +
	"and 6.12 (bookworm-backports). `ipvs` and `nft` have the features above on each of them; `proxy` needs\n" +
	"sockets only. The table has what ironvip uses and an older kernel lacks. Nothing of it is required. A\n" +
	"distribution may have it in an older kernel; `ironvip doctor` tries it.\n"

// cell describes a dataplane's support of a feature.
func (d *dataplane) cell(f *feature) (string, error) {
	why, err := d.refuses(f)
	if err != nil {
		return "", err
	}
	if why != "" {
		_, what, _ := strings.Cut(why, " does not support ")
		what, _, _ = strings.Cut(what, "; nor ") // the first reason is enough
		what = strings.ReplaceAll(what, "; does not support ", "; ")
		return "no: " + strings.ReplaceAll(what, "|", `\|`), nil
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
