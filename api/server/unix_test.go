package server

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketsInTheWay(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{file: "is not a socket\nhint: remove it", filepath.Join(file, "sock"): "not a directory\nhint: set api.socket"} {
		if _, err := ListenUnix(path, 0o660); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", path, err, says)
		}
	}
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	again, err := ListenUnix(stale, 0o660)
	if err != nil {
		t.Fatalf("a socket that nobody serves: %v", err)
	}
	again.Close()
}

// A path may be as long as a socket path can be: 107 bytes.
func TestLongestSocketPath(t *testing.T) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, strings.Repeat("d", 107-len(dir)-len("//s")), "s")
	l, err := ListenUnix(path, 0o660)
	if err != nil {
		t.Fatalf("%d bytes: %v", len(path), err)
	}
	defer l.Close()
	if l.Addr().String() != path {
		t.Errorf("listens on %s", l.Addr())
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestServeTellsWhyItFailed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := New(Options{Log: slog.New(slog.DiscardHandler)}).Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("on a closed listener: %v", err)
	}
}
