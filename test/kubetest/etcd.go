package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
)

// Compact removes etcd's history and returns the present revision. Resource versions are etcd's
// revisions. A watch from an older revision is then 410 Gone, if kube-apiserver forwards it to
// etcd, as with the flag --watch-cache=false. By default kube-apiserver serves watches from its own
// cache, which begins at its start: so call Restart afterwards.
func (c *Cluster) Compact(t testing.TB) int64 {
	t.Helper()
	var status struct {
		Header struct {
			Revision int64 `json:",string"`
		}
	}
	must(t, "etcd's revision", c.askEtcd(t.Context(), "/v3/maintenance/status", struct{}{}, &status))
	must(t, "compaction", c.askEtcd(t.Context(), "/v3/kv/compaction", map[string]any{"revision": status.Header.Revision, "physical": true}, nil))
	return status.Header.Revision
}

// etcdReady reads a key from the leader.
func (c *Cluster) etcdReady(ctx context.Context) error {
	return c.askEtcd(ctx, "/v3/kv/range", map[string]any{"key": []byte("a")}, nil)
}

// askEtcd calls etcd through its JSON gateway.
func (c *Cluster) askEtcd(ctx context.Context, path string, question, into any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.etcdURL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.plain.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, resp.Status, b)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(b, into)
}
