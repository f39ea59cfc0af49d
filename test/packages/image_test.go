//go:build system

package packages

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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

// The Kubernetes API accepts the manifests, and ironvip the configuration in them.
func TestDaemonSet(t *testing.T) {
	cluster := kubetest.Start(t, kubetest.Options{})
	var all strings.Builder
	for _, name := range []string{"clusterrole.yaml", "daemonset.yaml"} {
		text := must.Get(os.ReadFile(filepath.Join(repository(t), "configs/kubernetes", name)))(t)
		fmt.Fprintf(&all, "%s\n---\n", text)
	}
	cluster.Apply(t, all.String())

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
	pod, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "ironvip-a", "namespace": "ironvip", "labels": set.Spec.Template.Metadata.Labels}, "spec": set.Spec.Template.Spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Apply(t, string(pod))

	var configMap struct{ Data map[string]string }
	cluster.Get(t, "/api/v1/namespaces/ironvip/configmaps/ironvip", &configMap)
	dir := t.TempDir()
	for name, text := range configMap.Data {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	output(t, filepath.Join(programs(t), hostArch(t), "ironvip"), "config", "validate", "--strict", dir)
}
