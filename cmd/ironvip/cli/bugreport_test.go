package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// untar returns the files of a report, without the directory.
func untar(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	unzipped := must.Get(gzip.NewReader(bytes.NewReader(archive)))(t)
	out := map[string]string{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text := must.Get(io.ReadAll(r))(t)
		_, name, _ := strings.Cut(h.Name, "/")
		out[name] = string(text)
	}
}

// No part of a report has a secret: of the configuration, of the files that it names, of events, or
// of anything that looks like one. The rest is there.
func TestBugreportHasNoSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		must.Succeed(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	const secret = "n0body-may-see-this"
	write("consul-token", secret+"-1\n")
	write("heartbeat-keys", secret+"-2 and more\n"+secret+"-3 of sixteen\n")
	write("ironvip.toml", "[consul]\naddress = \"https://admin:"+secret+"-4@consul.example:8501\"\ntoken_file = \""+dir+"/consul-token\"\n[announce]\nkey_file = \"heartbeat-keys\"\n")
	write("services.d/web.toml", "# password: "+secret+"-5\n[[service]]\nname = \"web\"\n")
	a := fullAgent(t)
	a.on("GET /v1/dataplane/diff", 200, v1.DataplaneDiff{Items: []v1.DiffEntry{{}}})
	a.on("GET /v1/events", 200, v1.EventList{Items: []v1.Event{{ID: 1, Kind: "x", Message: "consul refused " + secret + "-1: Authorization: Bearer " + secret + "-6"},
		{ID: 2, Kind: "y", Message: "token ironvip_" + strings.Repeat("n0body", 8) + " expired; -----BEGIN PRIVATE KEY-----\n" + secret + "-7\n-----END PRIVATE KEY-----"}}})
	r := a.runWith(t, Options{Host: wellHost()}, "bugreport -f - --config "+dir)
	if r.code != command.ExitOK {
		t.Fatal(r.stderr)
	}
	files := untar(t, []byte(r.stdout))
	for name, text := range files {
		for _, s := range []string{"n0body", "and more", "of sixteen"} {
			expect.False(t, strings.Contains(text, s), "%s has a secret:\n%s", name, text)
		}
	}
	for name, want := range map[string]string{
		"version.txt": "0.1.0", "status.json": `"level"`, "services.json": `"web"`, "dataplane.json": "frontends", "events.json": "consul refused REMOVED", "parts.txt": "ironvip dataplane diff -o json: complete", // with a finding
		"config.txt": "consul", "files" + dir + "/ironvip.toml": "token_file", "files" + dir + "/services.d/web.toml": "[[service]]",
	} {
		expect.Contains(t, files[name], want, "%s has no %q:\n", name, want)
	}
}

// Parts that fail are noted, and the archive is complete nevertheless.
func TestBugreportWithoutAnAgent(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "report.tar.gz")
	line := "bugreport --addr unix://" + dir + "/none --config " + dir + " -f " + file
	r := run(t, Options{Host: wellHost()}, line)
	if r.code != command.ExitOK || r.stdout != "" || !strings.Contains(r.stderr, "written to "+file) || !strings.Contains(r.stderr, "incomplete: see parts.txt") {
		t.Fatal(r)
	}
	archive := must.Get(os.ReadFile(file))(t)
	files := untar(t, archive)
	for _, want := range []string{"status.json              ironvip status -o json: exit code 6", "ironvip.toml: no such file", "version.txt              ironvip version: complete"} {
		expect.Contains(t, files["parts.txt"], want, "parts.txt has no %q:\n", want)
	}
	expect.Contains(t, files["status.json"], "no agent answers", "status.json:\n")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if r := run(t, Options{Host: wellHost()}, line); r.code != command.ExitError { // an archive is not overwritten
		t.Error(r)
	}
}
