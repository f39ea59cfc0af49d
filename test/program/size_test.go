//go:build system

package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/must"
)

// kubernetesMayCost is the maximum number of bytes that the Kubernetes adapter, with its parts of
// client-go, may add to the binary.
const kubernetesMayCost = 10_000_000

// The adapter stays within its size limit. A build without it rejects by name the configuration
// that needs it.
//
// Slow: it links a program.
func TestBuildWithoutKubernetes(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	slim := filepath.Join(dir, "slim")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", "nomsgpack,nokubernetes", "-o", slim, "github.com/ironvip/ironvip/cmd/ironvip")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	size := func(path string) int64 {
		info := must.Get(os.Stat(path))(t)
		return info.Size()
	}
	with, without := size(bin(t)), size(slim)
	t.Logf("%d bytes, %d without the adapter: %.1f MB more", with, without, float64(with-without)/1e6)
	if more := with - without; more > kubernetesMayCost {
		t.Errorf("the adapter makes the binary %d bytes larger, %d at most", more, kubernetesMayCost)
	} else if more <= 0 {
		t.Errorf("without the adapter the binary is as large: %d and %d bytes", without, with)
	}

	config := filepath.Join(dir, "ironvip.toml")
	if err := os.WriteFile(config, []byte("[node]\nstate_dir = '"+dir+"'\n[[source]]\ntype = 'kubernetes'\nkubeconfig = 'kubeconfig'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"config", "validate", config}, {"agent", "--config", config}} {
		out, err := exec.Command(slim, args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), config+":4: source[0].type: this build does not support the kubernetes source") || !strings.Contains(string(out), "nokubernetes") {
			t.Errorf("ironvip %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if out, err := exec.Command(slim, "version").CombinedOutput(); err != nil {
		t.Errorf("version: %v\n%s", err, out)
	}
}
