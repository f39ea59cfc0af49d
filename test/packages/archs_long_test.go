//go:build system && long

package packages

import (
	"strings"
	"testing"
)

var archs = []string{"amd64", "arm64"}

// Packages, release and image are the same for both processors.
func TestBothProcessors(t *testing.T) {
	t.Run("files", TestPackageFiles)
	t.Run("deb", TestDeb)
	t.Run("rpm", TestRPM)
	t.Run("release", TestRelease)
	t.Run("image", TestImage)
}

// The programs for arm64 run.
func TestARM64Runs(t *testing.T) {
	dir := t.TempDir()
	output(t, "dpkg-deb", "--extract", deb(t, "arm64"), dir)
	if got := output(t, "qemu-aarch64-static", dir+"/usr/bin/ironvip", "version"); !strings.Contains(got, version) {
		t.Errorf("the version of ironvip is %q", got)
	}
	for _, program := range []string{"ironvip-announcer", "ironvip-proxy"} {
		if got := output(t, "qemu-aarch64-static", dir+"/usr/libexec/ironvip/"+program, "--version"); strings.TrimSpace(got) != version {
			t.Errorf("the version of %s is %q", program, got)
		}
	}
}
