//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// buildImage writes the guest's file system into memory and returns it as an unnamed file, open for
// reading. Nothing is left on the disk, however the runner ends.
func buildImage(o *options) (*os.File, error) {
	fd, err := unix.MemfdCreate("vmrun-image", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory for the image: %w", err)
	}
	f := os.NewFile(uintptr(fd), "image")
	if err := writeImage(f, o); err != nil {
		f.Close()
		return nil, fmt.Errorf("the VM's image: %w", err)
	}
	return f, nil
}

func writeImage(f *os.File, o *options) error {
	buf := bufio.NewWriterSize(f, 1<<20)
	im := &image{cpio: newCpioWriter(buf)}
	if o.root != "" {
		if err := im.shipRoot(o.root); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	im.ship(self, "/init")
	// Without it, a panic of the guest's init would not be printed.
	im.cpio.charDevice("/dev/console", 0o600, 5, 1)
	im.cpio.dir("/tmp", 0o1777)
	im.cpio.dir("/var/log", 0o755)
	im.cpio.dir("/root", 0o700)
	im.cpio.symlink("/var/run", "/run")
	for name, content := range etcFiles {
		im.cpio.text("/etc/"+name, content)
	}

	im.shipProgram(o.args[0], o.args[0])
	if o.root == "" {
		if err := im.shipTools(o.programs); err != nil {
			return err
		}
	}
	for _, hf := range o.files {
		im.shipTree(hf.host, hf.guest)
	}
	im.cpio.dir(o.dir, 0o755)
	if testdata := filepath.Join(o.dir, "testdata"); isDir(testdata) {
		im.shipTree(testdata, testdata)
	}
	// Create the directories of the program's result files.
	for _, c := range o.collect {
		im.cpio.dir(filepath.Dir(c), 0o755)
	}
	for _, d := range o.outDirs {
		im.cpio.dir(d, 0o755)
	}
	if o.root == "" {
		im.shipLibraries()
	}

	modules, err := filepath.EvalSymlinks(filepath.Join(o.cache, "modules"))
	if err != nil {
		return fmt.Errorf("the VM's kernel: %w (run test/vm/setup.sh)", err)
	}
	names := slices.Concat(baseModules, mergedModules, o.modules)
	if len(o.reach) > 0 {
		names = append(names, reachModules...)
	}
	order, err := moduleOrder(modules, names)
	if err != nil {
		return err
	}
	j := job{Args: o.args, Env: o.env, Dir: o.dir, Collect: o.collect, Network: len(o.reach) > 0, Systemd: o.root != ""}
	for _, m := range order {
		guest := "/lib/modules/" + m
		im.ship(filepath.Join(modules, m), guest)
		j.Modules = append(j.Modules, guest)
	}
	body, err := json.Marshal(j)
	if err != nil {
		return err
	}
	im.cpio.text(jobFile, string(body))
	if im.err != nil {
		return im.err
	}
	if err := im.cpio.close(); err != nil {
		return err
	}
	return buf.Flush()
}

// image copies host files into an archive. Its first error is kept.
type image struct {
	cpio     *cpioWriter
	programs []string // host files that may need libraries
	err      error
}

// ship copies a regular file, following links.
func (im *image) ship(host, guest string) {
	if im.err != nil || im.cpio.has(guest) {
		return
	}
	f, err := os.Open(host)
	if err != nil {
		im.err = err
		return
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		im.err = err
	case !st.Mode().IsRegular():
		im.err = fmt.Errorf("%s is not a regular file", host)
	default:
		im.cpio.file(guest, uint32(st.Mode().Perm()), st.Size(), f)
	}
}

// shipProgram copies a program, and records that its libraries are needed.
func (im *image) shipProgram(host, guest string) {
	im.ship(host, guest)
	im.programs = append(im.programs, host)
}

// shipTree copies a file or a directory, with the libraries of its executables.
func (im *image) shipTree(host, guest string) {
	err := filepath.WalkDir(host, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(host, name)
		if err != nil {
			return err
		}
		to := filepath.Join(guest, rel)
		st, err := os.Stat(name) // follows links; skips links to directories
		switch {
		case err != nil:
			return err
		case d.IsDir():
			im.cpio.dir(to, uint32(st.Mode().Perm()))
		case !st.Mode().IsRegular():
		case st.Mode()&0o111 != 0:
			im.shipProgram(name, to)
		default:
			im.ship(name, to)
		}
		return im.err
	})
	if err != nil && im.err == nil {
		im.err = err
	}
}

func (im *image) shipLibraries() {
	if im.err != nil {
		return
	}
	libs, err := libraries(im.programs...)
	if err != nil {
		im.err = err
		return
	}
	for _, l := range libs {
		im.ship(l, l)
	}
}

// shipTools copies programs that tests run, and the settings that these read.
func (im *image) shipTools(programs []string) error {
	for _, p := range slices.Concat(witnesses, programs) {
		file, err := findProgram(p)
		if err != nil {
			return err
		}
		im.shipProgram(file, file)
	}
	for _, optional := range []string{"/etc/ld.so.cache", "/etc/iproute2"} {
		if _, err := os.Stat(optional); err == nil {
			im.shipTree(optional, optional)
		}
	}
	return nil
}

// findProgram searches the PATH, and directories with tools that a user's PATH often omits.
func findProgram(name string) (string, error) {
	for _, file := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if found, err := exec.LookPath(file); err == nil {
			return filepath.Abs(found)
		}
	}
	return "", fmt.Errorf("the program %s is not installed (run test/vm/setup.sh, or install it)", name)
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}

// etcFiles are the files of /etc that programs and the Go resolver need. They are fixed, so that
// tests don't depend on the host's files.
var etcFiles = map[string]string{
	"passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"group":         "root:x:0:\nnogroup:x:65534:\n",
	"hosts":         "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 " + guestHostname + "\n",
	"hostname":      guestHostname + "\n",
	"resolv.conf":   "",
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nprotocols: files\nservices: files\n",
	"os-release":    "ID=vmrun\nNAME=vmrun\n",
	"protocols": "ip 0 IP\nicmp 1 ICMP\nigmp 2 IGMP\nipencap 4 IP-ENCAP\ntcp 6 TCP\nudp 17 UDP\nipv6 41 IPv6\n" +
		"gre 47 GRE\nesp 50 IPSEC-ESP\nah 51 IPSEC-AH\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n",
	"services": "ssh 22/tcp\ndomain 53/tcp\ndomain 53/udp\nhttp 80/tcp\nntp 123/udp\nhttps 443/tcp\n",
}
