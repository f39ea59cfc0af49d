//go:build system

package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/test/kubetest"
)

// In a pod the agent uses the server in its environment and the account in the pod's files. It writes
// addresses with the mode of ip_mode.
//
// Slow: an API server starts, and an agent twice.
func TestKubernetesInCluster(t *testing.T) {
	parallel(t)
	k := withKubernetes(t, kubetest.Options{})
	account := t.TempDir()
	ca, err := os.ReadFile(k.cluster.CA)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"token": k.cluster.Token(t, "ironvip", "ironvip"), "ca.crt": string(ca), "namespace": "ironvip"} {
		if err := os.WriteFile(filepath.Join(account, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	k.config("[[source]]\ntype = \"kubernetes\"\nin_cluster = true\nip_mode = \"vip\"\n")
	k.mode = corev1.LoadBalancerIPModeVIP
	// The files are at the same paths as in a pod, for this process only.
	k.adjust = func(cmd *exec.Cmd) {
		const place = `set -e
run=$(readlink -f /var/run)
mount -t tmpfs none "$run"
mkdir -p "$run/secrets/kubernetes.io"
ln -s "$1" "$run/secrets/kubernetes.io/serviceaccount"
shift
exec "$@"`
		cmd.Args = append([]string{"sh", "-c", place, "sh", account, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
		cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+k.cluster.Addr.Addr().String(), fmt.Sprintf("KUBERNETES_SERVICE_PORT=%d", k.cluster.Addr.Port()))
	}
	k.start()
	four, _ := k.pods(8080)
	k.cluster.Apply(t, loadBalancer("web", ourClass, "")+endpoints("web", four...))
	vip := k.ingress("web", 1)[0]
	k.reaches(k.lab.Client, "tcp", vip, 80, "backend1", "backend2")
	k.status("OK", "sources", "kubernetes 1 service")

	k.stop()
	k.adjust = nil // no pod
	k.start()
	k.reaches(k.lab.Client, "tcp", vip, 80, "backend1", "backend2")
	k.status("WARN", "sources", "this is not in a pod")
}
