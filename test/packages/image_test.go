//go:build system

package packages

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// writeImage writes an image layout to a new folder.
func writeImage(t *testing.T, dir string, env ...string) error {
	return script(repository(t), "packaging/image.sh", []string{dir}, append(env, "PROGRAMS="+programs(t))...)
}

// image returns the folder of an image layout.
func image(t *testing.T) string {
	t.Helper()
	return builtImage.get(t, func(dir string) error { return writeImage(t, dir+"/image") }) + "/image"
}

// The image is one that skopeo reads, for the processors of archs. Its programs run in it alone.
func TestImage(t *testing.T) {
	need.Root(t)
	dir := image(t)
	for _, arch := range archs {
		var info struct {
			Architecture, Os string
			Labels           map[string]string
			Layers           []string
			Created          string
		}
		text := output(t, "skopeo", "--override-arch", arch, "inspect", "oci:"+dir+":"+version)
		must.Succeed(t, json.Unmarshal([]byte(text), &info))
		if info.Architecture != arch || info.Os != "linux" || len(info.Layers) != 1 || info.Created != "2026-01-01T00:00:00Z" || info.Labels["org.opencontainers.image.version"] != version {
			t.Errorf("%s: %s", arch, text)
		}
		var config struct {
			Config struct{ Entrypoint, Cmd []string }
		}
		text = output(t, "skopeo", "--override-arch", arch, "inspect", "--config", "oci:"+dir+":"+version)
		must.Succeed(t, json.Unmarshal([]byte(text), &config))
		if diff := cmp.Diff([]string{"/usr/bin/ironvip", "agent", "--config", "/etc/ironvip"}, append(config.Config.Entrypoint, config.Config.Cmd...)); diff != "" {
			t.Errorf("%s: command (-want +got):\n%s", arch, diff)
		}
		// skopeo verifies every digest when it copies. The format dir has the layer as a file.
		files, root := t.TempDir(), t.TempDir()
		output(t, "skopeo", "--insecure-policy", "--override-arch", arch, "copy", "oci:"+dir+":"+version, "dir:"+files)
		output(t, "tar", "-xzf", filepath.Join(files, strings.TrimPrefix(info.Layers[0], "sha256:")), "-C", root)
		if arch == hostArch(t) {
			expect.Contains(t, output(t, "chroot", root, "/usr/bin/ironvip", "version"), version, "the version")
			for _, program := range []string{"ironvip-announcer", "ironvip-proxy"} {
				if got := output(t, "chroot", root, "/usr/libexec/ironvip/"+program, "--version"); strings.TrimSpace(got) != version {
					t.Errorf("the version of %s is %q", program, got)
				}
			}
		}
		if got, want := output(t, "find", root, "-mindepth", "1", "-printf", "%M %u:%g %P\n"), `
drwxr-xr-x root:root etc
drwxr-xr-x root:root etc/ironvip
drwxr-xr-x root:root run
drwxr-xr-x root:root run/ironvip
drwxr-xr-x root:root run/ironvip-announcer
drwxr-xr-x root:root run/ironvip-proxy
drwxrwxrwt root:root tmp
drwxr-xr-x root:root usr
drwxr-xr-x root:root usr/bin
-rwxr-xr-x root:root usr/bin/ironvip
drwxr-xr-x root:root usr/libexec
drwxr-xr-x root:root usr/libexec/ironvip
-rwxr-xr-x root:root usr/libexec/ironvip/ironvip-announcer
-rwxr-xr-x root:root usr/libexec/ironvip/ironvip-proxy
drwxr-xr-x root:root var
drwxr-xr-x root:root var/lib
drwxr-xr-x root:root var/lib/ironvip
`; cmp.Diff(lines(want), lines(got)) != "" {
			t.Errorf("%s: files (-want +got):\n%s", arch, cmp.Diff(lines(want), lines(got)))
		}
	}
}

// A second image has the same bytes.
func TestSecondImageIsIdentical(t *testing.T) {
	digests := func(dir string) string {
		var all strings.Builder
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			sum := sha256.Sum256(b)
			if filepath.Base(filepath.Dir(path)) == "sha256" && filepath.Base(path) != hex.EncodeToString(sum[:]) {
				t.Errorf("the content of %s has another digest", path)
			}
			fmt.Fprintf(&all, "%x %s\n", sum, strings.TrimPrefix(path, dir))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all.String()
	}
	second := filepath.Join(t.TempDir(), "image")
	must.Succeed(t, writeImage(t, second, "TZ=Asia/Tokyo"))
	if a, b := digests(image(t)), digests(second); a != b || a == "" {
		t.Errorf("two images differ:\n%s\n%s", a, b)
	}
}

// An overlay as in docs/kubernetes.md has its own image and configuration. The Kubernetes API accepts the objects, and
// ironvip the sample's configuration.
func TestKustomization(t *testing.T) {
	tool := exec.CommandContext(t.Context(), "go", "tool", "-n", "kustomize")
	tool.Dir = filepath.Join(repository(t), "tools/kustomize")
	tool.Stderr = os.Stderr
	kustomize := strings.TrimSpace(string(must.Get(tool.Output())(t)))
	overlay := t.TempDir()
	page := string(must.Get(os.ReadFile(filepath.Join(repository(t), "docs/kubernetes.md")))(t))
	_, after, _ := strings.Cut(page, "`kustomization.yaml`:\n\n```yaml\n")
	sample, _, _ := strings.Cut(after, "```")
	must.Succeed(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(sample), 0o644))
	const own = "# of the overlay\n"
	must.Succeed(t, os.WriteFile(filepath.Join(overlay, "ironvip.toml"), []byte(own), 0o644))
	base := filepath.Join(repository(t), "configs/kubernetes")
	must.Succeed(t, os.CopyFS(filepath.Join(overlay, "kubernetes"), os.DirFS(base)))
	output(t, filepath.Join(programs(t), hostArch(t), "ironvip"), "config", "validate", "--strict", base)

	cluster := kubetest.Start(t, kubetest.Options{})
	cluster.Apply(t, output(t, kustomize, "build", overlay))
	var set struct {
		Spec struct {
			Template struct {
				Metadata struct{ Labels map[string]string }
				Spec     map[string]any
			}
		}
	}
	cluster.Get(t, "/apis/apps/v1/namespaces/ironvip/daemonsets/ironvip", &set)
	// No controller runs, so the test makes the pod of a node.
	pod := must.Get(yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "ironvip-a", "namespace": "ironvip", "labels": set.Spec.Template.Metadata.Labels}, "spec": set.Spec.Template.Spec,
	}))(t)
	cluster.Apply(t, string(pod))
	expect.Contains(t, string(pod), "image: registry.example.com/ironvip:v1.2.3", "the pod")

	name := regexp.MustCompile(`name: (ironvip-[0-9a-z]{10})\n`).FindSubmatch(pod) // it changes with the text
	if name == nil {
		t.Fatalf("no ConfigMap in the pod:\n%s", pod)
	}
	var configMap struct{ Data map[string]string }
	cluster.Get(t, "/api/v1/namespaces/ironvip/configmaps/"+string(name[1]), &configMap)
	expect.Equal(t, configMap.Data["ironvip.toml"], own)
}
