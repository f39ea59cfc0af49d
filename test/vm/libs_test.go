//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseLdd(t *testing.T) {
	libs, err := parseLdd("/bin/a:\n\tlinux-vdso.so.1 (0x00007ffd)\n\tlibx.so.1 => /lib/libx.so.1 (0x00007f01)\n" +
		"\t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n/bin/b:\n\tlibx.so.1 => /lib/libx.so.1 (0x00007f01)\n")
	if want := "[/lib/libx.so.1 /lib64/ld-linux-x86-64.so.2]"; err != nil || fmt.Sprint(libs) != want {
		t.Errorf("got %v, %v; want %v", libs, err, want)
	}
	if _, err := parseLdd("\tlibmissing.so => not found\n"); err == nil || !strings.Contains(err.Error(), "libmissing") {
		t.Errorf("a missing library: got %v, want an error that names it", err)
	}
}

func TestLibraries(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if libs, err := libraries(script, "/proc/self/status"); err != nil || len(libs) != 0 {
		t.Errorf("a script: got %v, %v; want nothing", libs, err)
	}
	if _, err := libraries(filepath.Join(dir, "nothing")); err == nil {
		t.Error("a program that isn't there: no error")
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	dynamic, err := isDynamic(sh)
	if err != nil {
		t.Fatal(err)
	}
	libs, err := libraries(sh, sh)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, l := range libs {
		if _, err := os.Stat(l); err != nil || seen[l] {
			t.Errorf("library %s: stat: %v, twice: %v", l, err, seen[l])
		}
		seen[l] = true
	}
	if dynamic != (len(libs) > 0) {
		t.Errorf("%s: dynamic: %v, libraries: %v", sh, dynamic, libs)
	}
}
