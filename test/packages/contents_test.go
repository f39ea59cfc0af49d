//go:build system

package packages

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// files are the modes and paths of what every package installs, except manual pages.
const files = `
drwxr-xr-x /etc/ironvip
drwxr-xr-x /etc/ironvip/services.d
-rw-r--r-- /etc/polkit-1/rules.d/50-ironvip.rules
-rwxr-xr-x /usr/bin/ironvip
-rw-r--r-- /usr/lib/modules-load.d/ironvip.conf
-rw-r--r-- /usr/lib/sysctl.d/60-ironvip.conf
-rw-r--r-- /usr/lib/systemd/system/ironvip-announcer.service
-rw-r--r-- /usr/lib/systemd/system/ironvip-proxy.service
-rw-r--r-- /usr/lib/systemd/system/ironvip-proxy.socket
-rw-r--r-- /usr/lib/systemd/system/ironvip.service
-rw-r--r-- /usr/lib/sysusers.d/ironvip.conf
drwxr-xr-x /usr/libexec/ironvip
-rwxr-xr-x /usr/libexec/ironvip/ironvip-announcer
-rwxr-xr-x /usr/libexec/ironvip/ironvip-proxy
-rw-r--r-- /usr/share/bash-completion/completions/ironvip
drwxr-xr-x /usr/share/doc/ironvip
-rw-r--r-- /usr/share/doc/ironvip/CHANGELOG.md.gz
drwxr-xr-x /usr/share/doc/ironvip/examples
drwxr-xr-x /usr/share/doc/ironvip/examples/grafana
-rw-r--r-- /usr/share/doc/ironvip/examples/grafana/ironvip.json
-rw-r--r-- /usr/share/doc/ironvip/examples/ironvip.toml
drwxr-xr-x /usr/share/doc/ironvip/examples/kubernetes
-rw-r--r-- /usr/share/doc/ironvip/examples/kubernetes/clusterrole.yaml
-rw-r--r-- /usr/share/doc/ironvip/examples/kubernetes/daemonset.yaml
-rw-r--r-- /usr/share/doc/ironvip/examples/kubernetes/ironvip.toml
-rw-r--r-- /usr/share/doc/ironvip/examples/kubernetes/kustomization.yaml
drwxr-xr-x /usr/share/doc/ironvip/examples/prometheus
-rw-r--r-- /usr/share/doc/ironvip/examples/prometheus/ironvip.rules.yml
drwxr-xr-x /usr/share/doc/ironvip/examples/services.d
-rw-r--r-- /usr/share/doc/ironvip/examples/services.d/example.toml
-rw-r--r-- /usr/share/fish/vendor_completions.d/ironvip.fish
`

// lines are the sorted lines of a text without empty ones.
func lines(text string) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" && !yield(line) {
				return
			}
		}
	})
}

// checkFiles compares lines "MODE PATH" with those of files, and the manual pages with those that the
// program writes.
func checkFiles(t *testing.T, got []string, others ...string) {
	t.Helper()
	want := append(lines(files), others...)
	dir := t.TempDir()
	output(t, filepath.Join(programs(t), hostArch(t), "ironvip"), "man", dir)
	pages, err := os.ReadDir(dir)
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d manual pages (%v)", len(pages), err)
	}
	for _, page := range pages {
		section := strings.TrimPrefix(filepath.Ext(page.Name()), ".")
		want = append(want, "-rw-r--r-- /usr/share/man/man"+section+"/"+page.Name()+".gz")
	}
	byPath := func(a, b string) int { return strings.Compare(a[11:], b[11:]) }
	slices.SortFunc(want, byPath)
	slices.SortFunc(got, byPath)
	expect.NoDiff(t, cmp.Diff(want, got), "files")
}

// fields are lines "NAME: VALUE".
func fields(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, " ") {
			all[name] = value
		}
	}
	return all
}

func TestDeb(t *testing.T) {
	for _, arch := range archs {
		path := deb(t, arch)
		var got []string
		for line := range strings.Lines(output(t, "dpkg-deb", "--contents", path)) {
			f := strings.Fields(line) // mode, owner, size, date, time, path
			if f[1] != "root/root" && f[1] != "0/0" {
				t.Errorf("%s: owner of %s", arch, line)
			}
			name := strings.TrimSuffix(strings.TrimPrefix(f[5], "."), "/")
			// A .deb also lists directories of the system.
			if f[0][0] != 'd' || filepath.Base(name) == "ironvip" || strings.Contains(name, "/ironvip/") {
				got = append(got, f[0]+" "+name)
			}
		}
		checkFiles(t, got, "-rw-r--r-- /usr/share/zsh/vendor-completions/_ironvip")

		control := output(t, "dpkg-deb", "--field", path)
		tags := fields(control)
		delete(tags, "Installed-Size")
		want := map[string]string{
			"Package": "ironvip", "Version": "1.2.3-1", "Architecture": arch, "Depends": "systemd", "Section": "net", "Priority": "optional",
			"Maintainer": "ironvip maintainers <ironvip@users.noreply.github.com>", "License": "NOASSERTION",
			"Homepage": "https://github.com/ironvip/ironvip", "Description": "virtual IPs for services",
		}
		expect.NoDiff(t, cmp.Diff(want, tags), "%s: control", arch)
		expect.Contains(t, control, "services\n ironvip gives each service", "description of the .deb:\n")
		info := t.TempDir()
		output(t, "dpkg-deb", "--control", path, info)
		if text, err := os.ReadFile(filepath.Join(info, "conffiles")); err != nil || strings.TrimSpace(string(text)) != "/etc/polkit-1/rules.d/50-ironvip.rules" {
			t.Errorf("conffiles are %q (%v)", text, err)
		}
		for _, script := range []string{"preinst", "postinst", "prerm", "postrm"} {
			if info, err := os.Stat(filepath.Join(info, script)); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("%s: %v %v", script, info, err)
			}
		}
		root := t.TempDir()
		output(t, "dpkg-deb", "--extract", path, root)
		checkInstalled(t, root, arch)
	}
}

func TestRPM(t *testing.T) {
	for _, arch := range archs {
		path := rpm(t, arch)
		query := func(format string) string { return output(t, "rpm", "-qp", "--qf", format, path) }
		var got []string
		for _, line := range lines(query(`[%{FILEMODES:perms} %{FILENAMES} %{FILEUSERNAME}:%{FILEGROUPNAME}\n]`)) {
			name, owner, _ := strings.Cut(line[11:], " ")
			expect.Equal(t, owner, "root:root", "%s: owner of %s", arch, line)
			got = append(got, line[:11]+name)
		}
		checkFiles(t, got, "-rw-r--r-- /usr/share/zsh/site-functions/_ironvip")
		want := map[string]string{
			"Name": "ironvip", "Version": "1.2.3", "Release": "1", "Arch": map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch],
			"Summary": "virtual IPs for services", "License": "NOASSERTION", "URL": "https://github.com/ironvip/ironvip", "Host": "localhost", "Time": epoch,
		}
		if diff := cmp.Diff(want, fields(query(`Name: %{NAME}\nVersion: %{VERSION}\nRelease: %{RELEASE}\nArch: %{ARCH}\nSummary: %{SUMMARY}\nLicense: %{LICENSE}\nURL: %{URL}\nHost: %{BUILDHOST}\nTime: %{BUILDTIME}\n`))); diff != "" {
			t.Errorf("%s: tags (-want +got):\n%s", arch, diff)
		}
		if text := query(`%{DESCRIPTION}`); !strings.HasPrefix(text, "ironvip gives each service") {
			t.Errorf("description of the .rpm:\n%s", text)
		}
		requires := slices.DeleteFunc(lines(output(t, "rpm", "-qp", "--requires", path)), func(s string) bool { return strings.HasPrefix(s, "rpmlib(") })
		expect.NoDiff(t, cmp.Diff([]string{"systemd"}, slices.Compact(requires)), "requirements")
		if got := lines(query(`[%{FILEFLAGS:fflags} %{FILENAMES}\n]`)); !slices.Contains(got, "cn /etc/polkit-1/rules.d/50-ironvip.rules") {
			t.Errorf("flags of files: %s", got)
		}
		scripts := output(t, "rpm", "-qp", "--scripts", path)
		for _, name := range []string{"preinst", "postinst", "prerm", "postrm"} {
			text, err := os.ReadFile(filepath.Join(repository(t), "packaging/scripts", name))
			if err != nil || !strings.Contains(scripts, strings.TrimSpace(string(text))) {
				t.Errorf("the scripts lack %s (%v):\n%s", name, err, scripts)
			}
		}
	}
}

// checkInstalled checks unpacked files: programs without libraries, of the right processor and
// version, and units that start them.
func checkInstalled(t *testing.T, root, arch string) {
	t.Helper()
	for _, program := range []string{"/usr/bin/ironvip", "/usr/libexec/ironvip/ironvip-announcer", "/usr/libexec/ironvip/ironvip-proxy"} {
		unit := filepath.Base(program)
		f := must.Get(elf.Open(root + program))(t)
		if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; f.Machine != want {
			t.Errorf("%s is for %s, want %s", program, f.Machine, want)
		}
		if libraries, err := f.ImportedLibraries(); len(libraries) > 0 || f.Section(".interp") != nil {
			t.Errorf("%s needs %v (%v)", program, libraries, err)
		}
		f.Close()
		text := must.Get(os.ReadFile(root + "/usr/lib/systemd/system/" + unit + ".service"))(t)
		for _, setting := range regexp.MustCompile(`(?m)^Exec[A-Za-z]+=(\S+)`).FindAllSubmatch(text, -1) {
			if used := string(setting[1]); used != program && used != "/bin/sh" {
				t.Errorf("%s of %s: the program is %s", setting[0], unit, program)
			}
		}
		if bytes.Contains(text, []byte("/usr/local")) || !bytes.Contains(text, []byte("ExecStart="+program)) {
			t.Errorf("unit %s:\n%s", unit, text)
		}
	}
	if arch == hostArch(t) {
		expect.Contains(t, output(t, root+"/usr/bin/ironvip", "version"), version, "the version")
	}
	for path, want := range map[string]string{
		"/usr/share/man/man1/ironvip.1.gz":       "ironvip",
		"/usr/share/man/man5/ironvip.toml.5.gz":  "state_dir",
		"/usr/share/doc/ironvip/CHANGELOG.md.gz": "# Changelog",
	} {
		expect.Contains(t, gunzip(t, root+path), want, "%s lacks", path)
	}
	for path, want := range map[string]string{
		"/usr/share/bash-completion/completions/ironvip":    "ironvip",
		"/usr/share/fish/vendor_completions.d/ironvip.fish": "ironvip",
	} {
		expect.Contains(t, string(must.Get(os.ReadFile(root+path))(t)), want, "%s lacks", path)
	}
}

func gunzip(t *testing.T, path string) string {
	t.Helper()
	f := must.Get(os.Open(path))(t)
	defer f.Close()
	z := must.Get(gzip.NewReader(f))(t)
	b := must.Get(io.ReadAll(z))(t)
	return string(b)
}
