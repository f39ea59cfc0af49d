//go:build system

package statuswriter

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// A real API server refuses what is based on an outdated object, and repeated events.
// Slow: etcd and kube-apiserver start, which takes four seconds.
func TestCallsOnServer(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{})
	client := must.Get(kubeclient.New(kubeclient.Config{Kubeconfig: c.Kubeconfig(t, "admin", "system:masters")}))(t)
	by := calls{core: client.REST(corev1.SchemeGroupVersion), coordination: client.REST(coordinationv1.SchemeGroupVersion), manager: fieldManager("ironvip", "ironvip")}
	const path = "/api/v1/namespaces/default/services/web"
	c.Apply(t, `{apiVersion: v1, kind: Service, metadata: {namespace: default, name: web}, spec: {type: LoadBalancer, loadBalancerClass: example.com/none, ports: [{port: 80}]}}`)
	old, err := by.find(t.Context(), vip.ServiceKey{Namespace: "default", Name: "web"})
	if err != nil || old == nil {
		t.Fatalf("%v %v", old, err)
	}

	c.Patch(t, path, `{"metadata": {"finalizers": ["example.com/other"]}}`)
	if _, err := by.setFinalizers(t.Context(), old, []string{Finalizer}); !apierrors.IsConflict(err) {
		t.Errorf("finalizers: %v", err)
	}
	if _, err := by.setIngress(t.Context(), old, []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}); !apierrors.IsConflict(err) {
		t.Errorf("status: %v", err)
	}

	a := announcement{key: vip.ServiceKey{Namespace: "default", Name: "web"}, object: reference(old), reason: ReasonAllocated, message: "assigned"}
	expect.Succeed(t, by.createEvent(t.Context(), a.event("host", metav1.Now().Time)), "an event")
	if err := by.createEvent(t.Context(), a.event("host", metav1.Now().Time)); !apierrors.IsAlreadyExists(err) {
		t.Errorf("an event that happens again: %v", err)
	}

	c.Delete(t, path)
	c.Patch(t, path, `{"metadata": {"finalizers": null}}`)
	if _, err := by.setFinalizers(t.Context(), old, []string{Finalizer}); !apierrors.IsNotFound(err) {
		t.Errorf("finalizers of what is gone: %v", err)
	}
}
