//go:build linux

package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The host describes the job in a file of the image. The guest answers on its control port with a
// tar stream: an empty entry "start" before the program runs, the result files by their absolute
// path without the leading slash, and "exit" last. A stream that ends without "exit" means that the
// guest died.
const (
	jobFile    = "/vmrun.job"
	startEntry = "start"
	exitEntry  = "exit"
)

// job is the job of the guest's init.
type job struct {
	Args    []string `json:"args"` // Args[0] is the program's path
	Env     []string `json:"env"`
	Dir     string   `json:"dir"`     // working directory
	Modules []string `json:"modules"` // files of kernel modules, in load order
	Collect []string `json:"collect"` // absolute files and directories to return if they exist
	Network bool     `json:"network"` // the guest has a network device for access to the host
	Systemd bool     `json:"systemd"` // pid 1 becomes systemd, which runs the program in a unit
}

// exitStatus is how the program ended: by Signal if that isn't zero, otherwise with Code.
type exitStatus struct {
	Code   int `json:"code"`
	Signal int `json:"signal"`
}

// sendResults writes the existing files and directories of collect, then the status. It reports and
// skips a file that can't be read, because the test's status is more important than its profile.
func sendResults(w io.Writer, collect []string, st exitStatus) error {
	tw := tar.NewWriter(w)
	for _, root := range collect {
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return ignoreMissing(err)
			}
			return sendFile(tw, name)
		})
		if err != nil {
			fmt.Fprintf(os.Stderr, "vmrun: sending back %s: %v\n", root, err)
		}
	}
	body, err := json.Marshal(st)
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Name: exitEntry, Mode: 0o644, Size: int64(len(body))}); err != nil {
		return err
	}
	if _, err := tw.Write(body); err != nil {
		return err
	}
	return tw.Close()
}

func sendFile(tw *tar.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return ignoreMissing(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Name: name[1:], Mode: int64(st.Mode().Perm()), Size: st.Size()}); err != nil {
		return err
	}
	_, err = io.CopyN(tw, f, st.Size())
	return err
}

func sendStart(w io.Writer) error {
	tw := tar.NewWriter(w)
	if err := tw.WriteHeader(&tar.Header{Name: startEntry, Mode: 0o644}); err != nil {
		return err
	}
	return tw.Flush() // no Close: the stream continues
}

func ignoreMissing(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// receive reads the control stream until the exit entry. It calls started once the program runs,
// and stores result files under their own path. It rejects a file outside of collect, so that a
// guest can't write anywhere else.
func receive(r io.Reader, collect []string, started func()) (exitStatus, error) {
	tr := tar.NewReader(r)
	running := false
	for {
		h, err := tr.Next()
		if err != nil {
			return exitStatus{}, fmt.Errorf("control stream: %w", err)
		}
		switch h.Name {
		case startEntry:
			running = true
			started()
		case exitEntry:
			var st exitStatus
			if !running {
				return st, errors.New("control stream: an exit status before the start")
			}
			if err := json.NewDecoder(tr).Decode(&st); err != nil {
				return exitStatus{}, fmt.Errorf("control stream: exit status: %w", err)
			}
			return st, nil
		default:
			if err := storeFile(tr, filepath.Clean("/"+h.Name), fs.FileMode(h.Mode).Perm(), collect); err != nil {
				return exitStatus{}, fmt.Errorf("result file from the guest: %w", err)
			}
		}
	}
}

func storeFile(r io.Reader, name string, perm fs.FileMode, collect []string) error {
	if !within(name, collect) {
		return fmt.Errorf("%s was not asked for", name)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// within reports whether name is one of roots or below one.
func within(name string, roots []string) bool {
	for _, root := range roots {
		if name == root || strings.HasPrefix(name, strings.TrimSuffix(root, "/")+"/") {
			return true
		}
	}
	return false
}
