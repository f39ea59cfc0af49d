package consultest

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/consul/api"
)

// Snapshot returns the state of the server's cluster as `consul snapshot save` does.
func (s *Server) Snapshot() []byte {
	s.t.Helper()
	r, _, err := s.Client.Snapshot().Save(nil)
	s.must("save a snapshot", err)
	defer r.Close()
	b, err := io.ReadAll(r)
	s.must("save a snapshot", err)
	return b
}

// Restore sets the running cluster back to a snapshot as `consul snapshot restore` does: keys and
// their indexes are the former ones, and blocking queries return.
func (s *Server) Restore(snapshot []byte) {
	s.t.Helper()
	s.eventually("restored from a snapshot", func(ctx context.Context) error { // a cluster may briefly have no leader
		return s.Client.Snapshot().Restore((&api.WriteOptions{}).WithContext(ctx), bytes.NewReader(snapshot))
	})
	s.WaitReady()
}

// Disk is a copy of a server's data folder.
type Disk struct{ dir string }

// Disk copies the server's data that is on disk now. It pauses a running server for this.
func (s *Server) Disk() Disk {
	s.t.Helper()
	if s.Running() {
		s.Pause()
		defer s.Continue()
	}
	d := Disk{filepath.Join(s.t.TempDir(), "data")}
	s.must("copy the data", os.CopyFS(d.dir, os.DirFS(s.data())))
	return d
}

// RestartFrom kills the server if it runs, and starts it with an older copy of its data, as after
// the loss of a disk. Later writes are lost, and all indexes are the former ones. It is for a
// single server.
func (s *Server) RestartFrom(d Disk) {
	s.t.Helper()
	s.Kill()
	s.must("remove the data", os.RemoveAll(s.data()))
	s.must("put older data back", os.CopyFS(s.data(), os.DirFS(d.dir)))
	s.Start()
	s.WaitReady()
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }
