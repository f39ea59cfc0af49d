//go:build !nokubernetes

package configs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An unusable kubeconfig is a configuration error, also while no agent runs. A missing one is
// reported once. Files that systemd or a pod gives only to the agent aren't checked.
func TestCheckFilesReadsKubeconfigs(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("good", `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
clusters: [{name: a, cluster: {server: "https://127.0.0.1:6443"}}], users: [{name: a, user: {token: x}}]}`)
	write("bad", "apiVersion: v2")
	cfg, problems := Parse(filepath.Join(dir, "ironvip.toml"), []byte(`
[[source]]
type = "kubernetes"
name = "good"
kubeconfig = "good"
[[source]]
type = "kubernetes"
name = "bad"
kubeconfig = "bad"
[[source]]
type = "kubernetes"
name = "elsewhere"
kubeconfig = "good"
context = "elsewhere"
[[source]]
type = "kubernetes"
name = "nowhere"
kubeconfig = "nowhere"
[[source]]
type = "kubernetes"
name = "pod"
in_cluster = true
[[source]]
type = "kubernetes"
name = "credential"
kubeconfig = "$CREDENTIALS_DIRECTORY/kubeconfig"
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	got := map[string]string{}
	for _, p := range cfg.CheckFiles() {
		if got[p.Field] != "" || p.Place != cfg.Place(p.Field) {
			t.Errorf("%+v", p)
		}
		got[p.Field] = p.Message
	}
	for field, want := range map[string]string{"source[1].kubeconfig": "/bad", "source[2].kubeconfig": "context: elsewhere", "source[3].kubeconfig": "no such file"} {
		if !strings.Contains(got[field], want) {
			t.Errorf("%s: %q, want %s", field, got[field], want)
		}
	}
	if len(got) != 3 {
		t.Errorf("%v", got)
	}
}
