package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// Error is an answer of the API other than success.
type Error struct {
	Code    int    // HTTP's status: 404
	Reason  string // Kubernetes': "NotFound"; may be empty
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Reason, e.Message) }

// Code returns the HTTP status code of an *Error, and 0 for other errors and for nil.
func Code(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return 0
}

// Do sends one request with the permissions of Masters, and decodes the answer's JSON into into,
// unless that is nil. Path starts with /api or /apis and may have a query. An answer other than
// success is an *Error.
func (c *Cluster) Do(ctx context.Context, method, path, contentType string, body []byte, into any) error {
	b, err := c.ask(ctx, method, path, contentType, body)
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// ask sends one request and returns the answer's body.
func (c *Cluster) ask(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode >= 300 {
		e := &Error{Code: resp.StatusCode, Message: string(b)}
		json.Unmarshal(b, e) // health checks answer with text
		return nil, fmt.Errorf("%s %s: %w", method, path, e)
	}
	return b, nil
}

// Get decodes the object, or list, at a path.
func (c *Cluster) Get(t testing.TB, path string, into any) {
	t.Helper()
	must(t, "get", c.Do(t.Context(), http.MethodGet, path, "", nil, into))
}

// Patch changes the object at a path with a JSON merge patch: null removes a field. The object's
// status has its own path, with /status at the end.
func (c *Cluster) Patch(t testing.TB, path, patch string) {
	t.Helper()
	must(t, "patch", c.Do(t.Context(), http.MethodPatch, path, "application/merge-patch+json", []byte(patch), nil))
}

// Delete deletes the object at a path.
func (c *Cluster) Delete(t testing.TB, path string) {
	t.Helper()
	must(t, "delete", c.Do(t.Context(), http.MethodDelete, path, "", nil, nil))
}

// Apply creates or changes the objects of a manifest in their order: YAML documents separated by
// ---. It removes fields that an earlier Apply had and this one hasn't. It also applies an object's
// status, if present. The namespace is "default" by default. Permissions of a binding are in effect
// when it returns.
func (c *Cluster) Apply(t testing.TB, manifest string) {
	t.Helper()
	must(t, "apply", c.TryApply(t, manifest))
}

// TryApply is Apply for manifests that the API may reject or not answer.
func (c *Cluster) TryApply(t testing.TB, manifest string) error {
	for dec := yaml.NewDecoder(strings.NewReader(manifest)); ; {
		var object map[string]any
		if err := dec.Decode(&object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if object == nil {
			continue // only a comment
		}
		if err := c.apply(t, object); err != nil {
			return err
		}
	}
}

func (c *Cluster) apply(t testing.TB, object map[string]any) error {
	ctx := t.Context()
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	path, err := c.path(ctx, body)
	if err != nil {
		return err
	}
	const apply, query = "application/apply-patch+yaml", "?fieldManager=kubetest&force=true"
	if err := c.Do(ctx, http.MethodPatch, path+query, apply, body, nil); err != nil {
		return err
	}
	if err := c.awaitRights(t, body); err != nil {
		return err
	}
	status, has := object["status"]
	if !has {
		return nil
	}
	// Only the status, because this request would become a manager of all other fields in it.
	body, err = json.Marshal(map[string]any{"apiVersion": object["apiVersion"], "kind": object["kind"], "status": status})
	if err != nil {
		return err
	}
	return c.Do(ctx, http.MethodPatch, path+"/status"+query, apply, body, nil)
}

// resource is the API resource of a kind of object.
type resource struct {
	Name       string // "services"
	Kind       string // "Service"
	Namespaced bool
}

// path returns the path of an object.
func (c *Cluster) path(ctx context.Context, object []byte) (string, error) {
	var head struct {
		APIVersion, Kind string
		Metadata         struct{ Namespace, Name string }
	}
	if err := json.Unmarshal(object, &head); err != nil {
		return "", err
	}
	if head.APIVersion == "" || head.Kind == "" || head.Metadata.Name == "" {
		return "", fmt.Errorf("an object needs apiVersion, kind and metadata.name: %s", object)
	}
	root := "/apis/" + head.APIVersion
	if !strings.Contains(head.APIVersion, "/") {
		root = "/api/" + head.APIVersion
	}
	r, err := c.resource(ctx, root, head.Kind)
	if err != nil {
		return "", err
	}
	if !r.Namespaced {
		return root + "/" + r.Name + "/" + head.Metadata.Name, nil
	}
	if head.Metadata.Namespace == "" {
		head.Metadata.Namespace = "default"
	}
	return root + "/namespaces/" + head.Metadata.Namespace + "/" + r.Name + "/" + head.Metadata.Name, nil
}

// resource returns the resource of a kind. It requests the kinds of a group once.
func (c *Cluster) resource(ctx context.Context, root, kind string) (resource, error) {
	c.mu.Lock()
	r, known := c.resources[root+kind]
	c.mu.Unlock()
	if known {
		return r, nil
	}
	var list struct{ Resources []resource }
	if err := c.Do(ctx, http.MethodGet, root, "", nil, &list); err != nil {
		return r, err
	}
	for _, r := range list.Resources {
		if r.Kind == kind && !strings.Contains(r.Name, "/") { // skips subresources such as services/status
			c.mu.Lock()
			c.resources[root+kind] = r
			c.mu.Unlock()
			return r, nil
		}
	}
	return r, fmt.Errorf("%s has no kind %s", root, kind)
}
