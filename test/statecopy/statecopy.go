// Package statecopy reads the state file of a running agent. The agent has the file locked, so the
// package reads a copy.
package statecopy

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/ironvip/ironvip/internal/store"
)

// Look copies the state file of a state directory and passes the copy to at. An error may come from
// a copy during a write, so callers retry.
func Look(stateDir string, at func(*store.DB) error) (err error) {
	text, err := os.ReadFile(filepath.Join(stateDir, "ironvip.db"))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "statecopy")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	copied := filepath.Join(dir, "ironvip.db")
	if err := os.WriteFile(copied, text, 0o600); err != nil {
		return err
	}
	db, err := store.Open(copied)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return at(db)
}
