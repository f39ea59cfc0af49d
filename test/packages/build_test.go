//go:build system

package packages

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// The version of the packages under test, and the one time in them.
const (
	version = "v1.2.3"
	epoch   = "1767225600" // 2026-01-01
)

// A built is a folder that all tests share, written by the first one that needs it.
type built struct {
	once sync.Once
	dir  string
	err  error
}

func (b *built) get(t *testing.T, write func(dir string) error) string {
	t.Helper()
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "ironvip-packages-"); b.err == nil {
			b.err = write(b.dir)
		}
	})
	must.Succeed(t, b.err)
	return b.dir
}

var builtPrograms, builtPackages, builtOldPackages, builtImage built

func TestMain(m *testing.M) {
	code := m.Run()
	for _, b := range []*built{&builtPrograms, &builtPackages, &builtOldPackages, &builtImage} {
		_ = os.RemoveAll(b.dir)
	}
	os.Exit(code)
}

// programs builds the programs for the processors of archs, and returns their folder.
func programs(t *testing.T) string {
	t.Helper()
	for _, name := range repositoryFiles(t) {
		_, _ = os.Stat(filepath.Join(repository(t), name)) // go test then knows that a result depends on the file
	}
	return builtPrograms.get(t, func(dir string) error {
		return script(repository(t), "sh", []string{"-euc", ". packaging/version.sh; . packaging/build.sh; stage=$1; build_programs $ARCHS", "sh", dir})
	}) + "/programs"
}

// packages builds the packages for the processors of archs, and returns their folder.
func packages(t *testing.T) string {
	t.Helper()
	made := programs(t)
	return builtPackages.get(t, func(dir string) error {
		return script(repository(t), "packaging/package.sh", []string{dir}, "PROGRAMS="+made)
	})
}

// script runs a program in a tree, with the version, time and processors of the tests.
func script(tree, program string, args []string, env ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir = tree
	cmd.Env = append(append(os.Environ(), "VERSION="+version, "SOURCE_DATE_EPOCH="+epoch, "ARCHS="+strings.Join(archs, " ")), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, text)
	}
	return nil
}

// repository returns the root of this repository.
func repository(t *testing.T) string {
	t.Helper()
	root := must.Get(filepath.Abs("../.."))(t)
	return root
}

// output runs a program and returns what it prints.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), need.Program(t, program), args...)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out, &errors)
	}
	return string(out)
}

// hostArch is the processor of this host, in the names of Go.
func hostArch(t *testing.T) string { return strings.TrimSpace(output(t, "go", "env", "GOHOSTARCH")) }

// deb and rpm are the paths of a package for a processor, in the names of Go.
func deb(t *testing.T, arch string) string {
	return filepath.Join(packages(t), "ironvip_1.2.3-1_"+arch+".deb")
}

func rpm(t *testing.T, arch string) string {
	return filepath.Join(packages(t), "ironvip-1.2.3-1."+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]+".rpm")
}

// The packages are for two formats and the processors of archs, and nothing else is written.
func TestPackageFiles(t *testing.T) {
	entries := must.Get(os.ReadDir(packages(t)))(t)
	for _, arch := range archs {
		for _, path := range []string{deb(t, arch), rpm(t, arch)} {
			_, err := os.Stat(path)
			expect.Succeed(t, err)
		}
	}
	expect.Len(t, entries, 2*len(archs), "files")
}

// A second build makes the same bytes, in another folder, with other times and permissions of its
// files, in another time zone and language, and without git. Its processor is that of this host.
func TestSecondBuildIsIdentical(t *testing.T) {
	first := packages(t)
	tree, out := t.TempDir(), t.TempDir()
	copyTree(t, tree)
	arch := hostArch(t)
	if err := script(tree, "packaging/package.sh", []string{out}, "ARCHS="+arch, "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "USER=other", "GOFLAGS=-buildvcs=true"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{deb(t, arch), rpm(t, arch)} {
		name := filepath.Base(path)
		if a, b := digest(t, filepath.Join(first, name)), digest(t, filepath.Join(out, name)); a != b {
			t.Errorf("%s differs in the second build: %x and %x", name, a, b)
		}
	}
}

// repositoryFiles are the files that git knows or would add.
func repositoryFiles(t *testing.T) []string {
	t.Helper()
	text := output(t, "git", "-C", repository(t), "ls-files", "-z", "-co", "--exclude-standard")
	return strings.Split(strings.TrimSuffix(text, "\x00"), "\x00")
}

// copyTree copies this repository to a folder, with the download cache as a link. Only the owner can read
// the copies.
func copyTree(t *testing.T, to string) {
	t.Helper()
	from := repository(t)
	must.Succeed(t, os.Symlink(filepath.Join(from, ".cache"), filepath.Join(to, ".cache")))
	for _, name := range repositoryFiles(t) {
		info, err := os.Lstat(filepath.Join(from, name))
		if err != nil || !info.Mode().IsRegular() { // deleted, or a link
			continue
		}
		text, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), text, fs.FileMode(0o600|info.Mode()&0o100))
		}
		must.Succeed(t, err)
	}
}

func digest(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	b := must.Get(os.ReadFile(path))(t)
	return sha256.Sum256(b)
}

// Versions of packages are in the order of their commits, for dpkg and for rpm.
func TestVersionOrder(t *testing.T) {
	var versions []string
	for _, v := range []struct{ git, want string }{
		{"v1.1.0-12-gfedcba9", "1.1.0+12.gfedcba9"},
		{"v1.2.0-rc.1", "1.2.0~rc.1"},
		{"v1.2.0-rc.1-3-gabc1234", "1.2.0~rc.1+3.gabc1234"},
		{"v1.2.0-rc.2", "1.2.0~rc.2"},
		{"v1.2.0", "1.2.0"},
		{"v1.2.0-5-gabc1234", "1.2.0+5.gabc1234"},
		{"v1.2.0-5-gabc1234-dirty", "1.2.0+5.gabc1234.dirty"},
		{"v1.2.0-6-g0000000", "1.2.0+6.g0000000"},
		{"v1.2.1", "1.2.1"},
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", ". packaging/version.sh; echo $PACKAGE_VERSION")
		cmd.Dir, cmd.Env = repository(t), append(os.Environ(), "VERSION="+v.git)
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != v.want {
			t.Errorf("%s is version %q (%v), want %q", v.git, got, err, v.want)
		}
		versions = append(versions, v.want)
	}
	for i, older := range versions[:len(versions)-1] {
		newer := versions[i+1]
		if err := exec.CommandContext(t.Context(), need.Program(t, "dpkg"), "--compare-versions", older+"-1", "lt", newer+"-1").Run(); err != nil {
			t.Errorf("dpkg: %s is not older than %s: %v", older, newer, err)
		}
		if got := output(t, "rpm", "--eval", fmt.Sprintf("%%{lua:print(rpm.vercmp(%q,%q))}", older, newer)); strings.TrimSpace(got) != "-1" {
			t.Errorf("rpm: %s is not older than %s: %s", older, newer, got)
		}
	}
}
