package sockets

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
)

// The BPF objects that pass clients to listening sockets must live as long as these, so they are kept
// and handed over beside them. This package doesn't look into them.

// InheritedBPF takes the inherited BPF objects out of the set. They belong to the caller.
func (s *Set) InheritedBPF() (files []*os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, fd := range s.inherited {
		if p.protocol == "bpf" {
			files = append(files, os.NewFile(uintptr(fd), p.String()))
			delete(s.inherited, p)
		}
	}
	return files
}

// AddBPF adds BPF objects, which then belong to the set, like an open socket.
func (s *Set) AddBPF(files []*os.File) {
	for _, f := range files {
		s.add(f)
	}
}

// kindsOfBPF are the kernel's names for the descriptors of BPF objects.
var kindsOfBPF = []string{"bpf-map", "bpf_link", "bpf-prog"}

// identifyBPF returns the kind and number of a BPF object as its place. The number is unique in its
// kind while the object exists.
func identifyBPF(fd int) (place, error) {
	target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	kind, ok := strings.CutPrefix(target, "anon_inode:")
	if err != nil || !ok || !slices.Contains(kindsOfBPF, kind) {
		return place{}, errNoSocket
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return place{}, err
	}
	for line := range bytes.Lines(info) {
		name, number, _ := strings.Cut(string(line), ":")
		if name == "map_id" || name == "link_id" || name == "prog_id" && kind == "bpf-prog" {
			return place{protocol: "bpf", path: kind + " " + strings.TrimSpace(number)}, nil
		}
	}
	return place{}, errNoSocket
}
