package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	bpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sklookup"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Commands of bpf(2).
const (
	anyCommand = -1
	mapCreate  = unix.BPF_MAP_CREATE
	progLoad   = unix.BPF_PROG_LOAD
	linkCreate = unix.BPF_LINK_CREATE
)

// A process whose system call bpf fails has listeners, says why, and leaves nothing of sk_lookup. The
// filter of the process returns the errors that kernels return.
func TestBPFIsRefused(t *testing.T) {
	need.Root(t)
	if fault := os.Getenv("IRONVIP_TEST_FAULT"); fault != "" {
		command, errno, _ := strings.Cut(fault, " ")
		underFault(t, number(t, command), unix.Errno(number(t, errno)))
		return
	}
	for name, c := range map[string]struct {
		command int
		errno   unix.Errno
		reason  string
		hint    string
	}{
		"seccomp":                              {anyCommand, unix.EPERM, "BPF is forbidden (EPERM): by a seccomp filter", "SystemCallFilter="},
		"seccomp of a container":               {anyCommand, unix.ENOSYS, "the system call bpf is missing (ENOSYS)", "CONFIG_BPF_SYSCALL"},
		"a security module":                    {progLoad, unix.EPERM, "BPF is forbidden (EPERM)", ""},
		"limit of locked memory before 5.11":   {mapCreate, unix.EPERM, "the limit of locked memory", "LimitMEMLOCK=infinity"},
		"verifier refuses":                     {progLoad, unix.EACCES, "the kernel's verifier rejects the program", "report this"},
		"kernel without sk_lookup":             {progLoad, unix.EINVAL, "this kernel has no sk_lookup", ""},
		"the program can't be attached":        {linkCreate, unix.EPERM, "BPF is forbidden (EPERM)", ""},
		"too many programs":                    {linkCreate, unix.E2BIG, "too many programs", "bpftool net show"},
		"kernel without links for sk_lookup":   {linkCreate, unix.EINVAL, "this kernel has no sk_lookup", ""},
		"a security module that denies access": {linkCreate, unix.EACCES, "refuses the program", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBPFIsRefused$", "-test.v")
			cmd.Env = append(os.Environ(), "IRONVIP_TEST_FAULT="+strconv.Itoa(c.command)+" "+strconv.Itoa(int(c.errno)))
			out, err := cmd.CombinedOutput()
			must.Succeed(t, err, "%s", out)
			_, rest, _ := strings.Cut(string(out), "entrance: ")
			line, _, _ := strings.Cut(rest, "\n")
			var e Entrance
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if e.SkLookup || !strings.Contains(e.Reason, "sk_lookup can't work here: ") || !strings.Contains(e.Reason, c.reason) || !strings.Contains(e.Hint, c.hint) {
				t.Errorf("%+v", e)
			}
		})
	}
}

func number(t *testing.T, text string) int {
	return must.Get(strconv.Atoi(text))(t)
}

// underFault serves a client in this process, in which bpf fails.
func underFault(t *testing.T, command int, errno unix.Errno) {
	failBPF(t, command, errno)
	p := newTarget(t, Options{SkLookup: true})
	text := must.Get(json.Marshal(p.Entrance()))(t)
	t.Logf("entrance: %s", text)
	files := must.Get(os.ReadDir("/proc/self/fd"))(t)
	for _, f := range files {
		if target, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.Contains(target, "bpf") {
			t.Errorf("descriptor %s is left: %s", f.Name(), target)
		}
	}
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))))
	expect.Equal(t, who(t, key), "a", "the client")
}

// failBPF makes a command of bpf(2) fail in all threads of this process, for good.
func failBPF(t *testing.T, command int, errno unix.Errno) {
	t.Helper()
	const number, firstArgument = 0, 16 // in struct seccomp_data; arguments are little-endian here
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unless := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
	}
	result := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{load(number), unless(unix.SYS_BPF, 1)}
	if command != anyCommand {
		filter = []unix.SockFilter{load(number), unless(unix.SYS_BPF, 3), load(firstArgument), unless(uint32(command), 1)}
	}
	filter = append(filter, result(unix.SECCOMP_RET_ERRNO|uint32(errno)), result(unix.SECCOMP_RET_ALLOW))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	must.Succeed(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		t.Fatal("seccomp: ", errno)
	}
}

// The kernel has no program, link or map any more once the process has closed its own.
func TestNothingIsLeft(t *testing.T) {
	for name, end := range map[string]func(*bench, vip.FrontendKey){
		"closed":  func(b *bench, _ vip.FrontendKey) { b.Close() },
		"drained": func(b *bench, _ vip.FrontendKey) { b.Drain(b.Context()); b.Close() },
		"removed": func(b *bench, key vip.FrontendKey) { b.remove(key); b.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newSteered(t, Options{})
			key := freeKey(t, "127.96.0.1", vip.TCP)
			p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))))
			must.Equal(t, who(t, key), "a")
			program, attached, maps := identifiers(t, p.steering.Table)
			left := alive(program, attached, maps)
			must.Len(t, left, 4, "only %v exist", left)
			end(p, key)
			p.opts.Sockets.Close()
			wait.Until(t, "nothing is left", func() bool { return len(alive(program, attached, maps)) == 0 }, func() any { return alive(program, attached, maps) })
		})
	}
}

// identifiers returns the kernel's numbers of the objects of a table.
func identifiers(t *testing.T, table *sklookup.Table) (program ebpf.ProgramID, attached bpflink.ID, maps []ebpf.MapID) {
	files := must.Get(table.Files())(t)
	for _, f := range files {
		info := must.Get(os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd())))(t)
		f.Close()
		for line := range strings.Lines(string(info)) {
			name, text, _ := strings.Cut(line, ":")
			id, err := strconv.Atoi(strings.TrimSpace(text))
			switch {
			case err != nil:
			case name == "prog_id":
				program = ebpf.ProgramID(id)
			case name == "link_id":
				attached = bpflink.ID(id)
			case name == "map_id":
				maps = append(maps, ebpf.MapID(id))
			}
		}
	}
	return program, attached, maps
}

// alive returns which objects the kernel still has.
func alive(program ebpf.ProgramID, id bpflink.ID, maps []ebpf.MapID) (left []string) {
	if p, err := ebpf.NewProgramFromID(program); !errors.Is(err, os.ErrNotExist) {
		p.Close()
		left = append(left, "program")
	}
	if l, err := bpflink.NewFromID(id); !errors.Is(err, os.ErrNotExist) {
		l.Close()
		left = append(left, "link")
	}
	for _, id := range maps {
		if m, err := ebpf.NewMapFromID(id); !errors.Is(err, os.ErrNotExist) {
			m.Close()
			left = append(left, "map")
		}
	}
	return left
}

// addrOf returns the nth address of a network /8.
func addrOf(network byte, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{network, byte(n >> 16), byte(n >> 8), byte(n)})
}

// A full map is a problem of the frontends that don't fit, and of no other, until there is room.
func TestTheMapIsFull(t *testing.T) {
	p := newSteered(t, Options{})
	s := p.steering
	for i := range sklookup.MaxFrontends - 2 {
		must.Succeed(t, s.Table.Put(entryOf(vip.FrontendKey{Addr: addrOf(10, i), Port: 1, Protocol: vip.TCP}), sklookup.Refused))
	}
	backend := tcpBackend(t, "127.0.0.1", named("a"))
	var batch []reconcile.Update[vip.FrontendKey, vip.Frontend]
	for i := range 5 {
		f := onVIP(vip.FrontendKey{Addr: addrOf(127, 1+i), Port: 20054, Protocol: vip.TCP}, vip.RoundRobin, backend)
		batch = append(batch, reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, New: f})
	}
	must.Succeed(t, p.Apply(t.Context(), batch))
	failed := 0
	for _, u := range batch {
		switch {
		case u.Err != nil && strings.Contains(u.Err.Error(), "the map of frontends is full"):
			failed++
		case u.Err != nil:
			t.Error(u.Err)
		case who(t, u.Key) != "a":
			t.Errorf("%s is not served", u.Key)
		}
	}
	expect.Equal(t, failed, 3, "frontends didn't fit")
	must.Succeed(t, s.Table.Delete(entryOf(vip.FrontendKey{Addr: addrOf(10, 0), Port: 1, Protocol: vip.TCP})))
	p.must(batch[4].New)
	expect.Equal(t, who(t, batch[4].Key), "a", "once there is room")
}
