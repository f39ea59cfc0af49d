//go:build system

package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// apt and dnf install from the repositories of a release, if the signature of its key is right, and refuse a changed index.
//
// Slow: apt and dnf read and check repositories three times.
func TestRepositories(t *testing.T) {
	dir := release(t)
	r := newRoot(t, false)
	key := must.Get(os.ReadFile(filepath.Join(dir, "key.asc")))(t)
	r.write("/etc/apt/keyrings/ironvip.asc", string(key))
	r.write("/etc/apt/sources.list", "deb [signed-by=/etc/apt/keyrings/ironvip.asc] file:/srv/apt ./\n")
	r.must("find", "/etc/apt/sources.list.d", "-type", "f", "-delete")
	must.Succeed(t, os.CopyFS(r.path("/srv/apt"), os.DirFS(filepath.Join(dir, "apt"))))
	r.must("apt-get", "update", "--error-on=any")
	r.must("apt-get", "install", "--yes", "ironvip")
	expect.Equal(t, strings.Fields(r.must("/usr/bin/ironvip", "version"))[1], version, "installed")

	dnf := func() string { // without a package if the index is refused
		t.Helper()
		cmd := exec.CommandContext(t.Context(), need.Program(t, "dnf"), "--assumeyes", "--quiet", "--refresh", "--setopt=cachedir="+t.TempDir(), "--repofrompath=ironvip,"+filepath.Join(dir, "rpm"),
			"--repo=ironvip", "--setopt=ironvip.repo_gpgcheck=1", "--setopt=ironvip.gpgkey=file://"+filepath.Join(dir, "key.asc"), "repoquery", "--location", "ironvip")
		out, err := cmd.CombinedOutput()
		must.Succeed(t, err, "%s", out)
		return string(out)
	}
	expect.Contains(t, dnf(), filepath.Base(rpm(t, hostArch(t))), "packages that dnf finds:\n")

	for _, index := range []string{r.path("/srv/apt/Packages"), filepath.Join(dir, "rpm/repodata/repomd.xml")} {
		was := must.Get(os.ReadFile(index))(t)
		must.Succeed(t, os.WriteFile(index, append(was, '\n'), 0o644))
	}
	r.must("rm", "-r", "/var/lib/apt/lists")
	out, err := r.command("apt-get", "update", "--error-on=any").CombinedOutput()
	expect.True(t, err != nil && strings.Contains(string(out), "Hash Sum mismatch"), "apt accepts a changed index:\n%s", out)
	text := dnf()
	expect.False(t, strings.Contains(text, filepath.Base(rpm(t, hostArch(t)))), "dnf accepts a changed index:\n%s", text)
}

// release writes repositories of the packages with a signature, and returns their folder.
func release(t *testing.T) string {
	t.Helper()
	dir, home := filepath.Join(t.TempDir(), "release"), t.TempDir()
	must.Succeed(t, os.CopyFS(dir, os.DirFS(packages(t))))
	gpg := func(program string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), need.Program(t, program), args...)
		cmd.Env = append(os.Environ(), "GNUPGHOME="+home)
		out, err := cmd.CombinedOutput()
		must.Succeed(t, err, "%s: %s", program, out)
	}
	gpg("gpg", "--batch", "--passphrase", "", "--quick-generate-key", "operator@example.com", "rsa2048", "sign")
	defer gpg("gpgconf", "--kill", "gpg-agent")
	must.Succeed(t, script(repository(t), "packaging/repository.sh", []string{dir}, "GNUPGHOME="+home, "SIGN_KEY=operator@example.com"))
	return dir
}
