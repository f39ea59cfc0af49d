//go:build linux

package main

import (
	"fmt"
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
