//go:build system

package packages

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// A release has the packages, the image, the changes, the modules and the checksums of all of them. A second one, for the
// processor of this host, has the same bytes.
func TestRelease(t *testing.T) {
	tree := t.TempDir()
	copyTree(t, tree)
	changes := "## 1.2.3: a release\n\n- New things.\n\n"
	if err := os.WriteFile(filepath.Join(tree, "CHANGELOG.md"), []byte("# Changelog\n\n## Unreleased: later\n\n- Later.\n\n"+changes+"## 1.2.2\n\n- Old.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "release")
	write := func(env ...string) string {
		t.Helper()
		must.Succeed(t, script(tree, "packaging/release.sh", []string{out}, append(env, "PROGRAMS="+programs(t))...))
		sums := must.Get(os.ReadFile(filepath.Join(out, "SHA256SUMS")))(t)
		return string(sums)
	}
	sums := write()
	var names []string
	files := 0
	must.Succeed(t, filepath.WalkDir(out, func(path string, e fs.DirEntry, err error) error {
		if name := must.Get(filepath.Rel(out, path))(t); !e.IsDir() {
			if files++; strings.Count(name, "/") < 2 {
				names = append(names, name)
			}
		}
		return err
	}))
	want := []string{"CHANGES.md", "SHA256SUMS", "VERSION", "apt/Packages", "apt/Release", "image/index.json", "image/oci-layout"}
	for _, arch := range archs {
		want = append(want, "apt/"+filepath.Base(deb(t, arch)), "rpm/"+filepath.Base(rpm(t, arch)), "ironvip-"+arch+".cdx.json", "ironvip-announcer-"+arch+".cdx.json", "ironvip-proxy-"+arch+".cdx.json")
	}
	slices.Sort(names)
	slices.Sort(want)
	expect.SameList(t, names, want, "files")
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = out
	if text, err := check.CombinedOutput(); err != nil || strings.Count(string(text), ": OK") != files-1 {
		t.Errorf("checksums: %v\n%s", err, text)
	}
	for name, want := range map[string]string{"VERSION": version + "\n", "CHANGES.md": changes} {
		if text, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(text) != want {
			t.Errorf("%s is %q (%v), want %q", name, text, err, want)
		}
	}
	for _, arch := range archs {
		for _, program := range []string{"ironvip", "ironvip-announcer", "ironvip-proxy"} {
			checkModules(t, filepath.Join(out, program+"-"+arch+".cdx.json"), filepath.Join(programs(t), arch, program))
		}
	}

	must.Succeed(t, os.WriteFile(filepath.Join(out, "of-another-version"), nil, 0o644))
	again := slices.DeleteFunc(lines(write("ARCHS="+hostArch(t))), func(line string) bool {
		return len(archs) > 1 && regexp.MustCompile(`  (apt/(Packages|Release)|rpm/repodata/.*|image/.*)$`).MatchString(line) // of all processors
	})
	if diff := cmp.Diff(slices.DeleteFunc(lines(sums), func(line string) bool { return !slices.Contains(again, line) }), again); diff != "" || len(again) < 7 {
		t.Errorf("the second release differs (-first +second):\n%s\n%s", diff, sums)
	}
}

// checkModules compares a list of modules with those that Go has recorded in the program.
func checkModules(t *testing.T, sbom, program string) {
	t.Helper()
	text := must.Get(os.ReadFile(sbom))(t)
	var list struct {
		BOMFormat string
		Metadata  struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version string }
	}
	must.Succeed(t, json.Unmarshal(text, &list))
	if c := list.Metadata.Component; list.BOMFormat != "CycloneDX" || c.Name != "github.com/ironvip/ironvip" || c.Version != version {
		t.Errorf("%s describes %q %+v", sbom, list.BOMFormat, c)
	}
	var got, want []string
	for _, c := range list.Components {
		got = append(got, c.Name+" "+c.Version)
	}
	for line := range strings.Lines(output(t, "go", "version", "-m", program)) {
		switch f := strings.Fields(line); f[0] {
		case "dep":
			want = append(want, f[1]+" "+f[2])
		case program + ":":
			want = append(want, "std "+f[1])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 3 {
		t.Errorf("modules of %s (-want +got):\n%s", sbom, diff)
	}
}

// The changes are those of the version. Without a section, there is no release.
func TestChanges(t *testing.T) {
	tree := t.TempDir()
	copyTree(t, tree)
	if err := os.WriteFile(filepath.Join(tree, "CHANGELOG.md"), []byte("# Changelog\n\n## Unreleased\n\nnew\n\n## 1.2.3: text\n\nold\n\n## 1.2.30\n\nother\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{
		"v1.2.3": "## 1.2.3: text\n\nold\n\n", "v1.2.30": "## 1.2.30\n\nother\n", "v1.2.3-5-gabcdef0": "## Unreleased\n\nnew\n\n", "abcdef0-dirty": "## Unreleased\n\nnew\n\n",
		"v1.2.3-rc.1": "## Unreleased\n\nnew\n\n", "v1.2": "", "v1x2x3": "",
	} {
		text, err := exec.CommandContext(t.Context(), filepath.Join(tree, "packaging/changes.sh"), version).Output()
		if string(text) != want || (err == nil) != (want != "") {
			t.Errorf("changes of %s: %q (%v), want %q", version, text, err, want)
		}
	}
}
