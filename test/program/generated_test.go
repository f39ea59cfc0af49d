//go:build system

package program

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
)

// A client that oapi-codegen generates from /openapi.json calls every operation of a real agent, and
// decodes the answers.
//
// Slow: it builds a client.
func TestGeneratedClient(t *testing.T) {
	h := newHost(t)
	h.start()
	h.ready()
	document := openAPI(t, h)

	module := t.TempDir()
	must.Succeed(t, os.CopyFS(module, os.DirFS("../../tools/oapi-codegen")))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // the first build of the generator
	defer cancel()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOFLAGS=")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
		}
		return string(out)
	}
	for name, text := range map[string][]byte{"openapi.json": document, "client/doc.go": []byte("package client\n")} {
		path := filepath.Join(module, name)
		must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Succeed(t, os.WriteFile(path, text, 0o644))
	}
	run("go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "client", "-o", "client/client.go", "openapi.json")
	// -trimpath lets the build's cache serve every run with the same document.
	called := strings.Fields(run("go", "run", "-trimpath", "./walk", filepath.Join(h.dir, "sock"), "127.0.0.1", h.pool+".10"))
	slices.Sort(called)
	if called = slices.Compact(called); !slices.Equal(called, operations(t, document)) {
		t.Errorf("tools/oapi-codegen/walk calls\n%q\nthe document has\n%q", called, operations(t, document))
	}
}

func openAPI(t *testing.T, h *host) []byte {
	resp := must.Get(h.http().Get("http://localhost/openapi.json"))(t)
	defer resp.Body.Close()
	document := must.Get(io.ReadAll(resp.Body))(t)
	return document
}

// operations returns the ids of the operations of a document, sorted.
func operations(t *testing.T, document []byte) (ids []string) {
	var in struct {
		Paths map[string]map[string]struct {
			ID string `json:"operationId"`
		}
	}
	must.Succeed(t, json.Unmarshal(document, &in))
	for _, methods := range in.Paths {
		for op := range maps.Values(methods) {
			ids = append(ids, op.ID)
		}
	}
	slices.Sort(ids)
	return ids
}
