//go:build system

package kubevm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// A Service of a real cluster is served by IPVS: the tests of test/program with this prefix, each with
// its own cluster and VM.
//
// Slow: a VM starts, and in it namespaces, endpoints and an agent.
func TestScenarios(t *testing.T) {
	vmrun := need.VM(t)
	root := must.Get(filepath.Abs("../.."))(t)
	ironvip := os.Getenv("IRONVIP_BIN")
	if ironvip == "" {
		t.Fatal("IRONVIP_BIN is not set: run `make system`, or set it to the built binary's absolute path")
	}
	guest := filepath.Join(t.TempDir(), "program.test")
	build := exec.Command("go", "test", "-c", "-trimpath", "-tags", "nomsgpack vm system", "-o", guest, "./test/program")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
	list, err := exec.Command(guest, "-test.list", "^TestKubernetesOnIPVS").Output()
	if err != nil || len(list) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for name := range strings.FieldsSeq(string(list)) {
		t.Run(name, func(t *testing.T) {
			loan := kubetest.Start(t, kubetest.Options{ServiceCIDRs: kubetest.DualStack()}).Lend(t)
			rights := filepath.Join(root, "configs/kubernetes")
			cmd := exec.Command(vmrun, guest, "-test.v", "-test.timeout=20m", "-test.run=^"+name+"$")
			cmd.Dir = filepath.Join(root, "test/program")
			cmd.Env = append(os.Environ(), "IRONVIP_VM_MEM=1G", fmt.Sprintf("IRONVIP_VM_REACH=%d", loan.Port),
				fmt.Sprintf("IRONVIP_VM_FILES=%s:/usr/bin/ironvip,%s:/kubetest,%s:%s", ironvip, loan.Dir, rights, rights),
				"IRONVIP_BIN=/usr/bin/ironvip", "IRONVIP_KUBETEST=/kubetest")
			var out bytes.Buffer
			both := io.MultiWriter(t.Output(), &out)
			cmd.Stdout, cmd.Stderr = both, both
			must.Succeed(t, cmd.Run(), "in the VM")
			expect.Contains(t, out.String(), "--- PASS: "+name, "it did not run")
		})
	}
}
