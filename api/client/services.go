package client

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// List selects the services of a list, and a page of them.
type List struct {
	Source string   // of this source only
	State  string   // in this state only: "healthy", "unchecked", "elsewhere", "degraded", "down", "pending", "refused"
	Labels []string // with all of these: "key" or "key=value"
	Limit  int      // rows in a page, 1 to MaxLimit; 0: the server's default
	Cursor string   // Next of the previous page
	Wait            // blocks until the list is newer
}

// Wait makes a read block until the object is newer than Revision or For has passed. It then
// returns the current state. With a zero For, the read doesn't block.
type Wait struct {
	For      time.Duration
	Revision uint64
}

func (w Wait) query(q url.Values) {
	if w.For > 0 {
		q.Set("wait", w.For.String())
		q.Set("revision", strconv.FormatUint(w.Revision, 10))
	}
}

// Write contains the conditions of a write and how long to wait for the dataplane.
type Write struct {
	// IfMatch is the ETag of the service that the caller has read. The write is refused (412) if
	// the service has changed since.
	IfMatch string
	// CreateOnly refuses the write (412) if the service exists.
	CreateOnly bool
	// Wait is how long to wait until the dataplane has applied the write. A failure is an *Error
	// with CodeApplyFailed or CodeApplyTimeout. With 0, the write doesn't wait.
	Wait time.Duration
}

func (w Write) header() http.Header {
	h := http.Header{}
	if w.IfMatch != "" {
		h.Set("If-Match", w.IfMatch)
	}
	if w.CreateOnly {
		h.Set("If-None-Match", "*")
	}
	if w.Wait > 0 {
		h.Set("Prefer", fmt.Sprintf("wait=%d", max(1, int(w.Wait/time.Second))))
	}
	return h
}

// call returns the request of a page.
func (l List) call() call {
	q := url.Values{}
	for k, v := range map[string]string{"source": l.Source, "state": l.State, "cursor": l.Cursor} {
		if v != "" {
			q.Set(k, v)
		}
	}
	for _, label := range l.Labels {
		q.Add("label", label)
	}
	if l.Limit > 0 {
		q.Set("limit", strconv.Itoa(l.Limit))
	}
	l.Wait.query(q)
	return call{method: http.MethodGet, path: v1.PathServices, query: q, wait: l.For}
}

// Services returns one page of services.
func (c *Client) Services(ctx context.Context, l List) (v1.ServiceList, error) {
	return fetch[v1.ServiceList](ctx, c, l.call())
}

// ServicePages yields the pages of all services that l selects. It ends at the first error. It ignores
// Cursor and Wait of l. Without a Limit, the pages are as large as possible, because each one costs the
// agent O(services).
func (c *Client) ServicePages(ctx context.Context, l List) iter.Seq2[v1.ServiceList, error] {
	return func(yield func(v1.ServiceList, error) bool) {
		l.Cursor, l.Wait, l.Limit = "", Wait{}, cmp.Or(l.Limit, MaxLimit)
		for {
			page, err := c.Services(ctx, l)
			if !yield(page, err) || err != nil || page.Next == "" {
				return
			}
			l.Cursor = page.Next
		}
	}
}

// AllServices yields every service that l selects, as ServicePages does.
func (c *Client) AllServices(ctx context.Context, l List) iter.Seq2[v1.Service, error] {
	return func(yield func(v1.Service, error) bool) {
		for page, err := range c.ServicePages(ctx, l) {
			if err != nil {
				yield(v1.Service{}, err)
				return
			}
			for _, s := range page.Items {
				if !yield(s, nil) {
					return
				}
			}
		}
	}
}

// Service returns one service.
func (c *Client) Service(ctx context.Context, namespace, name string, w Wait) (v1.Service, error) {
	q := url.Values{}
	w.query(q)
	return fetch[v1.Service](ctx, c, call{path: v1.ServicePath(namespace, name), query: q, wait: w.For})
}

// PutService creates the service or replaces its spec.
func (c *Client) PutService(ctx context.Context, namespace, name string, s v1.ServiceSpec, w Write) (v1.Service, error) {
	return fetch[v1.Service](ctx, c, call{method: http.MethodPut, path: v1.ServicePath(namespace, name), header: w.header(), body: s, wait: w.Wait})
}

// PatchService changes the spec of an existing service by a JSON merge patch (RFC 7396): null removes
// a key, which means its default, an object is merged, and any other value replaces the old one.
func (c *Client) PatchService(ctx context.Context, namespace, name string, patch v1.ServicePatch, w Write) (v1.Service, error) {
	header := w.header()
	header.Set("Content-Type", v1.MergePatchType)
	return fetch[v1.Service](ctx, c, call{method: http.MethodPatch, path: v1.ServicePath(namespace, name), header: header, body: patch, wait: w.Wait})
}

// DeleteService removes the service. Its open connections drain.
func (c *Client) DeleteService(ctx context.Context, namespace, name string, w Write) (v1.Deleted, error) {
	return fetch[v1.Deleted](ctx, c, call{method: http.MethodDelete, path: v1.ServicePath(namespace, name), header: w.header(), wait: w.Wait})
}

// Apply creates or replaces several services in one durable write. With dryRun, nothing changes and
// the result has a plan. Invalid services are in the result as refused, and the others are applied.
// With atomic, one refused service makes the call an error and nothing changes.
func (c *Client) Apply(ctx context.Context, services []v1.ServiceSpec, dryRun, atomic bool, w Write) (v1.ApplyResult, error) {
	q := url.Values{}
	if dryRun {
		q.Set("dry_run", "true")
	}
	if atomic {
		q.Set("atomic", "true")
	}
	return fetch[v1.ApplyResult](ctx, c, call{method: http.MethodPost, path: v1.PathApply, query: q, header: w.header(),
		body: v1.ApplyRequest{Services: services}, wait: w.Wait + time.Minute})
}

// Explain explains the state of a service.
func (c *Client) Explain(ctx context.Context, namespace, name string) (v1.Explanation, error) {
	return fetch[v1.Explanation](ctx, c, call{path: v1.ExplainPath(namespace, name)})
}

// Backends returns every backend of a service.
func (c *Client) Backends(ctx context.Context, namespace, name string) (v1.BackendList, error) {
	return fetchAll(ctx, c, call{path: v1.BackendsPath(namespace, name), query: largePages()}, func(l *v1.BackendList) (*[]v1.BackendStatus, *string) { return &l.Items, &l.Next })
}

// Backend returns one backend.
func (c *Client) Backend(ctx context.Context, namespace, name, id string) (v1.Backend, error) {
	return fetch[v1.Backend](ctx, c, call{path: v1.BackendPath(namespace, name, id)})
}

// PutBackend registers a backend with an existing service, or replaces its registration. It counts
// as a heartbeat.
func (c *Client) PutBackend(ctx context.Context, namespace, name, id string, b v1.BackendSpec, w Write) (v1.Backend, error) {
	return fetch[v1.Backend](ctx, c, call{method: http.MethodPut, path: v1.BackendPath(namespace, name, id), header: w.header(), body: b, wait: w.Wait})
}

// DeleteBackend removes a backend. Its connections drain.
func (c *Client) DeleteBackend(ctx context.Context, namespace, name, id string, w Write) (v1.Deleted, error) {
	return fetch[v1.Deleted](ctx, c, call{method: http.MethodDelete, path: v1.BackendPath(namespace, name, id), header: w.header(), wait: w.Wait})
}

// Heartbeat sends the heartbeat of a backend with a TTL. If IsNotFound(err), the backend must
// register again.
func (c *Client) Heartbeat(ctx context.Context, namespace, name, id string) error {
	return c.do(ctx, call{method: http.MethodPut, path: v1.HeartbeatPath(namespace, name, id)}, nil)
}

// SetBackendState overrides a backend's state ("drain", "maint") or ends the override ("ready"), in
// a service of any source. Without force, a change that leaves a port of the service without a
// usable backend is refused (409, CodeLastBackend).
func (c *Client) SetBackendState(ctx context.Context, namespace, name, id string, state v1.StateSpec, force bool, w Write) (v1.Backend, error) {
	call := call{method: http.MethodPut, path: v1.BackendStatePath(namespace, name, id), header: w.header(), body: state, wait: w.Wait}
	if force {
		call.query = url.Values{"force": {"true"}}
	}
	return fetch[v1.Backend](ctx, c, call)
}

// SetGroupWeight overrides the weight of a group of backends in a service of any source, until
// DeleteOverride. Without force, a change that leaves a port of the service without a usable backend
// is refused (409, CodeLastBackend).
func (c *Client) SetGroupWeight(ctx context.Context, namespace, name, group string, weight v1.WeightSpec, force bool, w Write) (v1.Group, error) {
	call := call{method: http.MethodPut, path: v1.GroupWeightPath(namespace, name, group), header: w.header(), body: weight, wait: w.Wait}
	if force {
		call.query = url.Values{"force": {"true"}}
	}
	return fetch[v1.Group](ctx, c, call)
}

// Overrides returns every operator override.
func (c *Client) Overrides(ctx context.Context) (v1.OverrideList, error) {
	return fetchAll(ctx, c, call{path: v1.PathOverrides, query: largePages()}, func(l *v1.OverrideList) (*[]v1.Override, *string) { return &l.Items, &l.Next })
}

// DeleteOverride ends an operator override. The id is that of a backend, or the name of a group. If IsNotFound(err), there is none.
func (c *Client) DeleteOverride(ctx context.Context, namespace, name, id string, w Write) (v1.Deleted, error) {
	return fetch[v1.Deleted](ctx, c, call{method: http.MethodDelete, path: v1.OverridePath(namespace, name, id), header: w.header(), wait: w.Wait})
}
