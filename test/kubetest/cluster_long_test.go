//go:build system && long

package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
)

// A watch from a version before a compaction has lost its history, once the server has no copy of it.
func TestAnOldWatchIsGoneAfterCompaction(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	c.Apply(t, "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}")
	const path = "/api/v1/namespaces/default/services/web"
	var web struct {
		Metadata struct{ ResourceVersion string }
	}
	c.Get(t, path, &web)
	for n := range 3 {
		c.Patch(t, path, fmt.Sprintf(`{"metadata": {"labels": {"n": "%d"}}}`, n))
	}
	c.Compact(t)
	if kind, code := firstEvent(t, c, web.Metadata.ResourceVersion); kind != "MODIFIED" || code != 0 {
		t.Errorf("what kube-apiserver remembers: %s %d", kind, code)
	}
	c.API.Restart(t)
	if kind, code := firstEvent(t, c, web.Metadata.ResourceVersion); code != http.StatusGone {
		t.Errorf("after a restart: %s %d, want ERROR 410", kind, code)
	}
}

// firstEvent returns the first event of a watch of Services from a resource version, and the status
// code if the event is an error.
func firstEvent(t *testing.T, c *Cluster, version string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", c.URL+"/api/v1/services?watch=1&resourceVersion="+version, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "ERROR", resp.StatusCode
	}
	var event struct {
		Type   string
		Object struct{ Code int }
	}
	if err := json.NewDecoder(resp.Body).Decode(&event); err != nil {
		t.Fatal(err)
	}
	return event.Type, event.Object.Code
}
