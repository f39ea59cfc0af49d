package statuswriter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/vip"
)

// calls sends the Writer's requests. Each is sent once. The caller decides about retries, because
// it knows the newest state. The result of a failed request is not to be used.
//
// Services are changed by merge patches with the resourceVersion on which the change is based.
// Server-side apply would also work for lists that only we write. But it ignores later changes, so
// a writer that was suspended and continues could undo its successor's writes. It also creates a
// deleted object again. A patch replaces the whole list, but the version ensures that finalizers of
// other writers are not lost.
type calls struct {
	core, coordination rest.Interface
	client             *kubeclient.Client // for other groups
	manager            string             // our name in managedFields
}

const (
	callTimeout  = 5 * time.Second
	listTimeout  = 30 * time.Second // for a page of a list; no decision depends on it alone
	maxManager   = 128              // the API's limit
	managerParam = "fieldManager"
)

// fieldManager returns a name that is the same on every host with the same Lease and differs for
// other sources of the cluster. It identifies the writer of a finalizer.
func fieldManager(leaseNamespace, leaseName string) string {
	name := "ironvip:" + leaseNamespace + "/" + leaseName
	if len(name) <= maxManager {
		return name
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	rest := fmt.Sprintf("~%016x", h.Sum64())
	return name[:maxManager-len(rest)] + rest
}

// do sends a request and decodes the answer into out, if that is not nil.
func do(ctx context.Context, r *rest.Request, timeout time.Duration, out runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer := r.MaxRetries(0).Do(ctx)
	if out == nil {
		return answer.Error()
	}
	return answer.Into(out)
}

// patch is a merge patch of a Service.
type patch struct {
	Metadata struct {
		ResourceVersion string    `json:"resourceVersion"`
		Finalizers      *[]string `json:"finalizers,omitempty"`
	} `json:"metadata"`
	Status *patchStatus `json:"status,omitempty"`
}

type patchStatus struct {
	LoadBalancer struct {
		Ingress []corev1.LoadBalancerIngress `json:"ingress"` // null removes it
	} `json:"loadBalancer"`
}

// setIngress replaces status.loadBalancer.ingress and returns the server's new object.
func (c *calls) setIngress(ctx context.Context, s *corev1.Service, ingress []corev1.LoadBalancerIngress) (*corev1.Service, error) {
	p := patch{Status: &patchStatus{}}
	p.Status.LoadBalancer.Ingress = ingress
	return c.patch(ctx, s, &p, "status")
}

// setFinalizers replaces metadata.finalizers.
func (c *calls) setFinalizers(ctx context.Context, s *corev1.Service, finalizers []string) (*corev1.Service, error) {
	p := patch{}
	p.Metadata.Finalizers = &finalizers
	return c.patch(ctx, s, &p)
}

func (c *calls) patch(ctx context.Context, s *corev1.Service, p *patch, subresource ...string) (*corev1.Service, error) {
	p.Metadata.ResourceVersion = s.ResourceVersion
	body, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	out := &corev1.Service{}
	err = do(ctx, c.core.Patch(types.MergePatchType).Namespace(s.Namespace).Resource("services").Name(s.Name).SubResource(subresource...).
		Param(managerParam, c.manager).Body(body), callTimeout, out)
	out.ManagedFields = nil
	return out, err
}

// find reads one Service and returns nil if it does not exist. It uses a list with a field
// selector, because the source has only the permission to list.
func (c *calls) find(ctx context.Context, key vip.ServiceKey) (*corev1.Service, error) {
	var out corev1.ServiceList
	err := do(ctx, c.core.Get().Namespace(key.Namespace).Resource("services").Param("fieldSelector", "metadata.name="+key.Name), callTimeout, &out)
	if err != nil || len(out.Items) == 0 {
		return nil, err
	}
	return &out.Items[0], nil
}

// wrote returns which parts of a Service we have written, by its managedFields.
func (c *calls) wrote(managed []metav1.ManagedFieldsEntry) (finalizer, ingress bool) {
	for _, by := range managed {
		if by.Manager != c.manager || by.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Finalizers map[string]json.RawMessage `json:"f:finalizers"`
			} `json:"f:metadata"`
			Status struct {
				LoadBalancer map[string]json.RawMessage `json:"f:loadBalancer"`
			} `json:"f:status"`
		}
		if json.Unmarshal(by.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		_, has := fields.Metadata.Finalizers[`v:"`+Finalizer+`"`]
		finalizer = finalizer || has
		_, has = fields.Status.LoadBalancer["f:ingress"]
		ingress = ingress || has
	}
	return finalizer, ingress
}

func (c *calls) createEvent(ctx context.Context, e *corev1.Event) error {
	return do(ctx, c.core.Post().Namespace(e.Namespace).Resource("events").Param(managerParam, c.manager).Body(e), callTimeout, nil)
}

func (c *calls) getLease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, do(ctx, c.coordination.Get().Namespace(namespace).Resource("leases").Name(name), leaseTimeout, out)
}

// putLease creates a Lease, or replaces the version that was read.
func (c *calls) putLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	request := c.coordination.Post().Namespace(l.Namespace).Resource("leases")
	if l.ResourceVersion != "" {
		request = c.coordination.Put().Namespace(l.Namespace).Resource("leases").Name(l.Name)
	}
	out := &coordinationv1.Lease{}
	return out, do(ctx, request.Param(managerParam, c.manager).Body(l), leaseTimeout, out)
}

// finalizersWith returns a Service's finalizers with ours. finalizersWithout returns them without
// ours. Both keep the order.
func finalizersWith(s *corev1.Service) []string { return append(slices.Clip(s.Finalizers), Finalizer) }

func finalizersWithout(s *corev1.Service) []string {
	return slices.DeleteFunc(append([]string{}, s.Finalizers...), func(f string) bool { return f == Finalizer })
}

// verdict classifies the result of a request.
type verdict uint8

const (
	verdictDone     verdict = iota
	verdictOutdated         // the object has changed or is gone
	verdictLacking          // a permission is missing
	verdictRefused          // the server refuses this request
	verdictBusy             // the server is unavailable for all requests
	verdictEnding           // its namespace is being deleted
)

// judge classifies the result of a request and returns the wait that the server requests.
func judge(err error) (verdict, time.Duration) {
	if err == nil {
		return verdictDone, 0
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return verdictBusy, 0 // no answer
	}
	wait := time.Duration(0)
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
		wait = time.Duration(seconds) * time.Second
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return verdictOutdated, 0
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return verdictEnding, 0
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot "): // admission refuses with other texts
		return verdictLacking, 0
	case apierrors.IsUnauthorized(err), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err):
		return verdictBusy, wait
	default: // includes 500, which a webhook for one kind of object can cause
		return verdictRefused, wait
	}
}
