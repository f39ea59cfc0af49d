package consultest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMergeIsTableByTable(t *testing.T) {
	shared := map[string]any{"http": 1, "https": 2}
	into := map[string]any{"name": "a", "ports": shared, "list": []string{"x"}}
	merge(into, map[string]any{"ports": map[string]any{"https": 3}, "list": []string{"y"}, "limits": map[string]any{"n": 0}})
	want := map[string]any{"name": "a", "ports": map[string]any{"http": 1, "https": 3}, "list": []string{"y"}, "limits": map[string]any{"n": 0}}
	if diff := cmp.Diff(want, into); diff != "" {
		t.Error(diff)
	}
	if shared["https"] != 2 {
		t.Error("the table that was merged into is not the merge's own")
	}
}
