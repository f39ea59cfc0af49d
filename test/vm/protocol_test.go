//go:build linux

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestResultsRoundTrip(t *testing.T) {
	dir := t.TempDir()
	file, tree := filepath.Join(dir, "c.out"), filepath.Join(dir, "cov")
	want := map[string]string{file: "mode: set\n", filepath.Join(tree, "a"): "", filepath.Join(tree, "sub", "b"): string(make([]byte, 3000))}
	for name, content := range want {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	collect := []string{file, tree, filepath.Join(dir, "never-written")}
	var b bytes.Buffer
	if err := sendStart(&b); err != nil {
		t.Fatal(err)
	}
	if err := sendResults(&b, collect, exitStatus{Code: 7}); err != nil {
		t.Fatal(err)
	}
	stream := b.Bytes()
	for name := range want {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	starts := 0
	st, err := receive(bytes.NewReader(stream), collect, func() { starts++ })
	if err != nil || st != (exitStatus{Code: 7}) || starts != 1 {
		t.Fatalf("got %v, %d starts, %v", st, starts, err)
	}
	for name, content := range want {
		if got, err := os.ReadFile(name); err != nil || string(got) != content {
			t.Errorf("%s: %v, content as sent: %v", name, err, string(got) == content)
		}
	}

	// A guest may die after any byte. The stream ends with the status in a block of 512 bytes and a
	// trailer of 1024.
	for n := 0; n <= len(stream)-1536; n += 64 {
		if _, err := receive(bytes.NewReader(stream[:n]), collect, func() {}); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d of %d: got %v, want an unexpected end", n, len(stream), err)
		}
	}
	other := []string{filepath.Join(dir, "c.outer"), filepath.Join(dir, "other")}
	if _, err := receive(bytes.NewReader(stream), other, func() {}); err == nil {
		t.Error("a file that was not asked for was stored")
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var tl tail
	line := bytes.Repeat([]byte("x"), 1000)
	for range 1000 {
		tl.Write(line)
	}
	tl.Write([]byte("the end\r\n"))
	s := tl.String()
	if len(s) > tailSize || len(tl.buf) > 3*tailSize || !bytes.HasSuffix([]byte(s), []byte("xthe end\n")) {
		t.Errorf("kept %d of %d bytes, ending in %q", len(s), len(tl.buf), s[len(s)-10:])
	}
}
