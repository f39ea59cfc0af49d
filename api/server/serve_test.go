package server

import (
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestServeTellsWhyItFailed(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := New(Options{Log: slog.New(slog.DiscardHandler)}).Serve(t.Context(), l, nil); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("on a closed listener: %v", err)
	}
}
