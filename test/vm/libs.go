//go:build linux

package main

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// libraries returns the shared objects, including the loader, that the given programs need, each
// path once. Static programs, scripts and data need none.
func libraries(files ...string) ([]string, error) {
	var dynamic []string
	for _, f := range files {
		is, err := isDynamic(f)
		if err != nil {
			return nil, err
		}
		if is {
			dynamic = append(dynamic, f)
		}
	}
	if len(dynamic) == 0 {
		return nil, nil
	}
	// ldd uses the loader itself, so search paths, rpaths and hardware variants resolve as at run
	// time.
	cmd := exec.Command("ldd", dynamic...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w (install the package libc-bin)", strings.Join(dynamic, " "), err)
	}
	return parseLdd(string(out))
}

// parseLdd reads lines such as "libc.so.6 => /lib/libc.so.6 (0x7f..)" and "/lib64/ld-linux-x86-64.so.2 (0x7f..)".
func parseLdd(out string) ([]string, error) {
	var libs []string
	seen := map[string]bool{}
	sc := bufio.NewScanner(strings.NewReader(out))
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		if _, after, ok := strings.Cut(line, " => "); ok {
			if after == "not found" {
				return nil, fmt.Errorf("ldd: %s", line)
			}
			line = after
		}
		file, _, ok := strings.Cut(line, " (0x")
		if !ok || !strings.HasPrefix(file, "/") || seen[file] { // the vdso, a "file:" heading, a repetition
			continue
		}
		seen[file] = true
		libs = append(libs, file)
	}
	return libs, sc.Err()
}

// isDynamic reports whether file is an ELF program that names a loader.
func isDynamic(file string) (bool, error) {
	f, err := elf.Open(file)
	if notELF := (*elf.FormatError)(nil); errors.As(err, &notELF) || err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return true, nil
		}
	}
	return false, nil
}
