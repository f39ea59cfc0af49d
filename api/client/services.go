package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// List says which services a list holds and which page of them.
type List struct {
	Source string   // of this source only
	State  string   // in this state only: "healthy", "elsewhere", "degraded", "down", "pending", "refused"
	Labels []string // with all of these: "key" or "key=value"
	Limit  int      // rows in a page, 1 to 1,000; 0 is the server's default
	Cursor string   // the page after the one whose Next this is
	Wait            // blocks until the list is newer
}

// Wait makes a read block until the object is newer than Revision, or until
// For has passed; it then answers with what is there. Zero For doesn't block.
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

// Write says under which conditions a write is done and what is waited for.
type Write struct {
	// IfMatch is the ETag of the service that the caller has seen: a write
	// meanwhile by someone else is refused (412).
	IfMatch string
	// CreateOnly refuses (412) when the service exists.
	CreateOnly bool
	// Wait is how long to wait until the dataplane has it; a failure to apply is
	// an *Error with CodeApplyFailed or CodeApplyTimeout. 0 doesn't wait.
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

// Services returns one page of services.
func (c *Client) Services(ctx context.Context, l List) (out v1.ServiceList, err error) {
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
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathServices, query: q, out: &out, wait: l.For})
	return out, err
}

// AllServices yields every service that l selects, page by page. It ends at
// the first error. Cursor and Wait of l are not used.
func (c *Client) AllServices(ctx context.Context, l List) iter.Seq2[v1.Service, error] {
	return func(yield func(v1.Service, error) bool) {
		l.Cursor, l.Wait = "", Wait{}
		for {
			page, err := c.Services(ctx, l)
			if err != nil {
				yield(v1.Service{}, err)
				return
			}
			for _, s := range page.Items {
				if !yield(s, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			l.Cursor = page.Next
		}
	}
}

// Service returns one service.
func (c *Client) Service(ctx context.Context, namespace, name string, w Wait) (out v1.Service, err error) {
	q := url.Values{}
	w.query(q)
	err = c.do(ctx, call{method: http.MethodGet, path: v1.ServicePath(namespace, name), query: q, out: &out, wait: w.For})
	return out, err
}

// PutService creates the service or replaces its spec.
func (c *Client) PutService(ctx context.Context, namespace, name string, s v1.ServiceSpec, w Write) (out v1.Service, err error) {
	err = c.do(ctx, call{method: http.MethodPut, path: v1.ServicePath(namespace, name), header: w.header(), body: s, out: &out, wait: w.Wait})
	return out, err
}

// DeleteService removes the service; its open connections drain.
func (c *Client) DeleteService(ctx context.Context, namespace, name string, w Write) (out v1.Deleted, err error) {
	err = c.do(ctx, call{method: http.MethodDelete, path: v1.ServicePath(namespace, name), header: w.header(), out: &out, wait: w.Wait})
	return out, err
}

// Apply creates or replaces many services in one durable write. With dryRun
// nothing changes and the result has a plan. Services that can't be accepted
// are in the result as refused while the others are applied; with atomic one
// of them makes the call an error and nothing changes.
func (c *Client) Apply(ctx context.Context, services []v1.ServiceSpec, dryRun, atomic bool, w Write) (out v1.ApplyResult, err error) {
	q := url.Values{}
	if dryRun {
		q.Set("dry_run", "true")
	}
	if atomic {
		q.Set("atomic", "true")
	}
	err = c.do(ctx, call{method: http.MethodPost, path: v1.PathApply, query: q, header: w.header(),
		body: v1.ApplyRequest{Services: services}, out: &out, wait: w.Wait + time.Minute})
	return out, err
}

// Explain says why a service is as it is.
func (c *Client) Explain(ctx context.Context, namespace, name string) (out v1.Explanation, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.ExplainPath(namespace, name), out: &out})
	return out, err
}

// Backends returns every backend of a service.
func (c *Client) Backends(ctx context.Context, namespace, name string) (out v1.BackendList, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.BackendsPath(namespace, name), out: &out})
	return out, err
}

// Backend returns one backend.
func (c *Client) Backend(ctx context.Context, namespace, name, id string) (out v1.Backend, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.BackendPath(namespace, name, id), out: &out})
	return out, err
}

// PutBackend registers a backend with a service that exists, or replaces what
// it registered before. It counts as a heartbeat.
func (c *Client) PutBackend(ctx context.Context, namespace, name, id string, b v1.BackendSpec, w Write) (out v1.Backend, err error) {
	err = c.do(ctx, call{method: http.MethodPut, path: v1.BackendPath(namespace, name, id), header: w.header(), body: b, out: &out, wait: w.Wait})
	return out, err
}

// DeleteBackend takes a backend out; its connections drain.
func (c *Client) DeleteBackend(ctx context.Context, namespace, name, id string, w Write) (out v1.Deleted, err error) {
	err = c.do(ctx, call{method: http.MethodDelete, path: v1.BackendPath(namespace, name, id), header: w.header(), out: &out, wait: w.Wait})
	return out, err
}

// Heartbeat says that a backend with a ttl lives. IsNotFound(err) means that
// it must register again.
func (c *Client) Heartbeat(ctx context.Context, namespace, name, id string) error {
	return c.do(ctx, call{method: http.MethodPut, path: v1.HeartbeatPath(namespace, name, id)})
}

// SetBackendState drains a backend ("drain", "maint") or takes that back
// ("ready"), in a service of any source.
func (c *Client) SetBackendState(ctx context.Context, namespace, name, id, state string, w Write) (out v1.Backend, err error) {
	err = c.do(ctx, call{method: http.MethodPut, path: v1.BackendStatePath(namespace, name, id), header: w.header(),
		body: v1.StateSpec{State: state}, out: &out, wait: w.Wait})
	return out, err
}
