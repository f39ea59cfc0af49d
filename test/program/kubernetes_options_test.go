//go:build system

package program

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/test/kubetest"
)

// shown waits until a Service's status has these addresses in this mode. With addresses it also
// requires the finalizer, without them no finalizer.
func (k *kube) shown(name string, mode corev1.LoadBalancerIPMode, want ...string) {
	k.t.Helper()
	k.eventually(fmt.Sprintf("the status of %s has %q as %s", name, want, mode), func() error {
		s, err := k.object(name)
		if err != nil || s == nil {
			return fmt.Errorf("%v", err)
		}
		var got []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			got = append(got, i.IP)
			if i.IPMode == nil || *i.IPMode != mode {
				return fmt.Errorf("%s has the mode %v", i.IP, i.IPMode)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || len(s.Finalizers) > 0 != (len(want) > 0) {
			return fmt.Errorf("%q, finalizers %q", got, s.Finalizers)
		}
		return nil
	})
}

// The effects of a source's options in the cluster: Services without a class, the mode of their
// addresses, and the release of Services that are no longer selected after a restart with other
// options.
func TestKubernetesOptions(t *testing.T) {
	parallel(t)
	k := withKubernetes(t, kubetest.Options{ServiceCIDRs: kubetest.DualStack()})
	again := func(options string) {
		t.Helper()
		k.stop()
		k.source(options)
		k.start()
	}
	k.source("classless = true\nip_mode = \"vip\"\nselector = \"!internal\"\n" + nodeSource)
	k.start()
	four, _ := k.pods(8080)
	classless := strings.Replace(loadBalancer("plain", "", ""), "  loadBalancerClass: \"\"\n", "", 1)
	k.cluster.Apply(t, classless+endpoints("plain", four...)+loadBalancer("web", ourClass, "")+endpoints("web", four...))
	plain, web := k.vip("plain"), k.vip("web")
	k.shown("plain", corev1.LoadBalancerIPModeVIP, plain)
	k.shown("web", corev1.LoadBalancerIPModeVIP, web)
	k.reaches(k.lab.Client, "tcp", plain, 80, "backend1", "backend2")

	// Nodes of both families, by their ports.
	k.pods(30080)
	var nodes string
	for _, n := range k.lab.Backends {
		nodes += kubetest.Node(n.Name, "", n.Addr4)
	}
	k.cluster.Apply(t, nodes)
	for _, n := range k.lab.Backends { // apply can't set it, so write it as kubelets do
		k.cluster.Patch(t, "/api/v1/nodes/"+n.Name+"/status", fmt.Sprintf(`{"status": {"addresses": [{"type": "InternalIP", "address": %q}, {"type": "InternalIP", "address": %q}]}}`, n.Addr4, n.Addr6))
	}
	k.cluster.Apply(t, strings.Replace(loadBalancer("far", nodeClass, "  ipFamilyPolicy: RequireDualStack"), "port: 80,", "port: 80, nodePort: 30080,", 1)+
		endpoints("far", netip.MustParseAddr("10.244.1.7")))
	for _, vip := range k.ingress("far", 2) {
		k.reaches(k.lab.Client, "tcp", vip, 80, "backend1", "backend2")
	}

	again("classless = true\nip_mode = \"proxy\"\nselector = \"!internal\"\n")
	k.shown("plain", corev1.LoadBalancerIPModeProxy, plain)
	k.shown("web", corev1.LoadBalancerIPModeProxy, web)

	// While no agent runs, one no longer matches the selector, and the source's class then excludes
	// the other.
	k.stop()
	k.cluster.Patch(t, services+"web", `{"metadata": {"labels": {"internal": "yes"}}}`)
	again("selector = \"!internal\"\n")
	k.shown("web", "")
	k.shown("plain", "")
	k.silent(web)
	k.silent(plain)
	k.cluster.Patch(t, services+"web", `{"metadata": {"labels": null}}`)
	k.shown("web", corev1.LoadBalancerIPModeProxy, k.vip("web"))
	k.status("OK", "sources", "kubernetes 1 service")
}

// In a pod the agent uses the server in its environment and the account in the pod's files.
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
	k.config("[[source]]\ntype = \"kubernetes\"\nin_cluster = true\n")
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

// Two agents without a common store assign different VIPs. The one that doesn't write the status
// reports that, and writes nothing.
func TestKubernetesHostsThatDiffer(t *testing.T) {
	parallel(t)
	k := withKubernetes(t, kubetest.Options{})
	second := k.lab.AddClient("lb2")
	holds(second)
	other := newHost(t)
	other.pool, other.inside = k.pool, second.Do
	text, err := os.ReadFile(filepath.Join(k.dir, "ironvip.toml"))
	if err != nil {
		t.Fatal(err)
	}
	for old, now := range map[string]string{`"lb1"`: `"lb2"`, k.dir: other.dir, `name = "main"`: `name = "main"` + "\nexclude = [\"198.51.100.0/26\"]"} {
		text = []byte(strings.ReplaceAll(string(text), old, now))
	}
	other.write("ironvip.toml", string(text))
	k.start()
	four, _ := k.pods(8080)
	k.cluster.Apply(t, loadBalancer("web", ourClass, "")+endpoints("web", four...))
	vip := k.ingress("web", 1)[0]
	written, err := k.object("web")
	if err != nil {
		t.Fatal(err)
	}
	other.start()
	another := other.vip("web")
	if another == vip {
		t.Fatalf("both have web at %s", vip)
	}
	says := fmt.Sprintf("host \"lb1\" wrote %s into its status, this host assigned %s", vip, another)
	k.within(3*time.Minute, "lb2 says that it differs", func() error {
		if out := other.cli("status"); !strings.Contains(out.stdout, says) {
			return fmt.Errorf("%s%s", out.stdout, out.stderr)
		}
		return nil
	})
	k.status("OK", "sources", "kubernetes 1 service")
	if now, err := k.object("web"); err != nil || now.ResourceVersion != written.ResourceVersion {
		t.Errorf("written to: %v %+v", err, now)
	}
}
