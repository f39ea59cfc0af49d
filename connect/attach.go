package connect

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/bpf"
	"github.com/ironvip/ironvip/internal/sockets"
)

//go:generate bpf/build.sh
//go:embed bpf/connect.o
var object []byte

// objects are the attached programs with their maps. They live as long as a process has their descriptors.
type objects struct {
	cgroup   string
	maps     map[string]*ebpf.Map
	programs map[string]*ebpf.Program
	links    map[ebpf.AttachType]link.Link
	specs    map[string]*ebpf.ProgramSpec
}

// Cgroup returns where the root of the cgroups of version 2 is.
func Cgroup() (string, error) {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var s unix.Statfs_t
		if err := unix.Statfs(dir, &s); err == nil && s.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir, nil
		}
	}
	return "", errors.New("there are no cgroups of version 2 at /sys/fs/cgroup")
}

// attach loads the programs and attaches them to the cgroup. With files, those of an earlier process, it goes on with their maps
// and replaces their programs, each in one step; objects of another layout end instead. It closes the files.
func attach(of Options) (*objects, error) {
	cgroup, files := of.Cgroup, of.Files
	namespace := sockets.Namespace()
	if namespace == 0 {
		closeFiles(files)
		return nil, errors.New("this kernel doesn't number network namespaces (SO_NETNS_COOKIE), as Linux 5.14 and later do")
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["namespace"].Set(namespace); err != nil {
		return nil, err
	}
	if of.AllNamespaces {
		if err := spec.Variables["all_namespaces"].Set(uint64(1)); err != nil {
			return nil, err
		}
	}
	o := &objects{cgroup: cgroup, specs: spec.Programs}
	o.adopt(spec.Maps, files)
	before := o.maps
	all, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: before})
	for _, m := range before {
		m.Close() // the collection has copies
	}
	o.maps = nil
	if err == nil {
		o.maps, o.programs = all.Maps, all.Programs
		err = o.complete()
	}
	if err != nil {
		o.close()
		return nil, bpf.Refusal(err, "BPF programs of cgroups for getpeername (CONFIG_CGROUP_BPF)", o.list())
	}
	return o, nil
}

// adopt takes the maps and links of another process, if they are all there.
func (o *objects) adopt(specs map[string]*ebpf.MapSpec, files []*os.File) {
	o.maps, o.links = map[string]*ebpf.Map{}, map[ebpf.AttachType]link.Link{}
	for _, f := range files {
		switch l, m := bpf.Open(f); {
		case m != nil:
			o.recognize(specs, m)
		case l != nil && attached(l):
			info, _ := l.Info()
			o.links[ebpf.AttachType(info.Cgroup().AttachType)] = l
		case l != nil:
			l.Close()
		}
		f.Close()
	}
	if len(o.maps) < len(specs)-1 || len(o.links) < len(o.specs) { // the map of variables is made again
		o.close()
		o.maps, o.links = nil, map[ebpf.AttachType]link.Link{}
	}
}

// recognize takes a map by its name and layout. A map that means something else needs another name.
func (o *objects) recognize(specs map[string]*ebpf.MapSpec, m *ebpf.Map) {
	if info, err := m.Info(); err == nil {
		if spec := specs[info.Name]; spec != nil && o.maps[info.Name] == nil && spec.Compatible(m) == nil {
			o.maps[info.Name] = m
			return
		}
	}
	m.Close()
}

// attached reports whether a link attaches a program to a cgroup. Another program may detach it.
func attached(l link.Link) bool {
	info, err := l.Info()
	return err == nil && info.Cgroup() != nil && info.Cgroup().CgroupId != 0
}

// complete attaches each program: in the place of an earlier one, or beside the programs of others.
func (o *objects) complete() error {
	for name, spec := range o.specs {
		var err error
		if l := o.links[spec.AttachType]; l != nil {
			err = l.Update(o.programs[name])
		} else {
			err = o.attachOne(name)
		}
		if errors.Is(err, unix.EPERM) {
			return &bpf.RefusedError{Reason: fmt.Sprintf("%s: another program is attached there that allows no others (EPERM)", name), Hint: "see it with: " + o.list(), Err: err}
		}
		if err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
	}
	return nil
}

// list is the command that lists what is attached to the cgroup.
func (o *objects) list() string { return "bpftool cgroup show " + o.cgroup }

func (o *objects) attachOne(name string) error {
	to := o.specs[name].AttachType
	l, err := link.AttachCgroup(link.CgroupOptions{Path: o.cgroup, Attach: to, Program: o.programs[name]})
	if err == nil {
		o.links[to] = l
	}
	return err
}

// repair attaches what another program has detached.
func (o *objects) repair() error {
	for name, spec := range o.specs {
		l := o.links[spec.AttachType]
		if attached(l) {
			continue
		}
		l.Close()
		if err := o.attachOne(name); err != nil {
			return fmt.Errorf("attach %s again: %w", name, err)
		}
	}
	return nil
}

// files returns copies of the descriptors that keep everything alive.
func (o *objects) files() (files []*os.File, err error) {
	add := func(name string, fd int) {
		f, failed := bpf.File(fd, name)
		if failed != nil {
			err = failed
			return
		}
		files = append(files, f)
	}
	for name, m := range o.maps {
		if name != variables {
			add(name, m.FD())
		}
	}
	for to, l := range o.links {
		add(to.String(), l.(interface{ FD() int }).FD())
	}
	if err != nil {
		closeFiles(files)
		return nil, err
	}
	return files, nil
}

// variables is the map of the variables, which an earlier process wrote for itself.
const variables = ".rodata"

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// close closes the descriptors. The kernel detaches the programs, unless there are copies.
func (o *objects) close() {
	for _, l := range o.links {
		l.Close()
	}
	for _, p := range o.programs {
		p.Close()
	}
	for _, m := range o.maps {
		m.Close()
	}
}
