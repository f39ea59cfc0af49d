//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestModuleOrder(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"modules.dep":     "k/a.ko: k/b-x.ko k/c.ko\nk/b-x.ko: k/c.ko\nk/c.ko:\nk/d.ko: k/c.ko\n",
		"modules.builtin": "k/tun.ko\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		names []string
		want  string
	}{
		{[]string{"a"}, "[k/c.ko k/b-x.ko k/a.ko]"},
		{[]string{"d", "a", "d"}, "[k/c.ko k/d.ko k/b-x.ko k/a.ko]"},
		{[]string{"b_x"}, "[k/c.ko k/b-x.ko]"},
		{[]string{"b-x", "tun"}, "[k/c.ko k/b-x.ko]"},
		{[]string{"nft_counter", "d"}, "[k/c.ko k/d.ko]"},
		{nil, "[]"},
	} {
		got, err := moduleOrder(dir, tc.names)
		if err != nil || fmt.Sprint(got) != tc.want {
			t.Errorf("%v: got %v, %v; want %v", tc.names, got, err, tc.want)
		}
	}
	if _, err := moduleOrder(dir, []string{"nothing"}); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("an unknown module: got %v, want an error that names it", err)
	}
}
