package sklookup

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// inNamespace moves the test into a network namespace of its own.
func inNamespace(t *testing.T) {
	t.Helper()
	need.Root(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	before := must.Get(netns.Get())(t)
	made := must.Get(netns.New())(t)
	t.Cleanup(func() {
		if err := netns.Set(before); err == nil {
			runtime.UnlockOSThread()
		}
		made.Close()
		before.Close()
	})
	lo := must.Get(netlink.LinkByName("lo"))(t)
	must.Succeed(t, netlink.LinkSetUp(lo))
}

func opened(t *testing.T, files ...*os.File) *Table {
	t.Helper()
	table := must.Get(Open(files))(t)
	t.Cleanup(table.Close)
	return table
}

func listenTCP(t *testing.T, at string) *net.TCPListener {
	t.Helper()
	config := net.ListenConfig{}
	config.SetMultipathTCP(false)
	l := must.Get(config.Listen(t.Context(), "tcp", at))(t)
	t.Cleanup(func() { l.Close() })
	accept.Each(l, func(c net.Conn) {
		fmt.Fprintf(c, "%s by %s", c.LocalAddr(), at)
	})
	return l.(*net.TCPListener)
}

// answer returns what the server at an address says; "refused" if there is none.
func answer(t *testing.T, at string) string {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if errors.Is(err, unix.ECONNREFUSED) {
		return "refused"
	}
	must.Succeed(t, err)
	defer c.Close()
	b := must.Get(io.ReadAll(c))(t)
	return string(b)
}

func tcp(at string) Key { return KeyOf(netip.MustParseAddrPort(at), unix.IPPROTO_TCP) }

func want(t *testing.T, at, text string) {
	t.Helper()
	expect.Equal(t, answer(t, at), text, "the answer to the client of %s", at)
}

func TestClientsReachTheSlotOfTheirFrontend(t *testing.T) {
	inNamespace(t)
	table := opened(t)
	must.Succeed(t, table.SetSocket(TCP4, listenTCP(t, "127.0.0.1:999")))
	must.Succeed(t, table.SetSocket(TCP6, listenTCP(t, "[::1]:999")))
	must.Succeed(t, table.Put(tcp("127.1.0.1:80"), TCP4))
	must.Succeed(t, table.Put(tcp("127.1.0.1:65535"), TCP4))
	must.Succeed(t, table.Put(tcp("[::1]:80"), TCP6))
	must.Succeed(t, table.Put(tcp("127.1.0.2:80"), Refused))
	listenTCP(t, "0.0.0.0:80") // another program's
	want(t, "127.1.0.1:80", "127.1.0.1:80 by 127.0.0.1:999")
	want(t, "127.1.0.1:65535", "127.1.0.1:65535 by 127.0.0.1:999")
	want(t, "[::1]:80", "[::1]:80 by [::1]:999")
	want(t, "127.1.0.2:80", "refused")
	want(t, "127.1.0.3:80", "127.1.0.3:80 by 0.0.0.0:80")
	want(t, "127.1.0.1:81", "refused")
	all := must.Get(table.All())(t)
	if d := cmp.Diff(map[Key]Slot{tcp("127.1.0.1:80"): TCP4, tcp("127.1.0.1:65535"): TCP4, tcp("[::1]:80"): TCP6, tcp("127.1.0.2:80"): Refused}, all); d != "" {
		t.Error(d)
	}
	must.Succeed(t, table.Delete(tcp("127.1.0.1:80")))
	must.Succeed(t, table.Delete(tcp("127.1.0.1:80")))
	want(t, "127.1.0.1:80", "127.1.0.1:80 by 0.0.0.0:80")
}

// The capabilities of the systemd unit are enough. The verifier is stricter with them than with all.
func TestCapabilitiesOfTheUnit(t *testing.T) {
	inNamespace(t)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of this thread
	var all [2]unix.CapUserData
	must.Succeed(t, unix.Capget(&header, &all[0]))
	few := all
	few[0].Effective = 1 << unix.CAP_NET_ADMIN
	few[1].Effective = 1 << (unix.CAP_BPF - 32)
	must.Succeed(t, unix.Capset(&header, &few[0]))
	defer func() { must.Succeed(t, unix.Capset(&header, &all[0])) }()
	table := opened(t)
	for _, at := range []string{"127.1.0.1:80", "[::1]:80"} {
		must.Succeed(t, table.Put(tcp(at), TCP4))
	}
}

func TestAClosedSocketLeavesTheTable(t *testing.T) {
	inNamespace(t)
	table := opened(t)
	shared := listenTCP(t, "127.0.0.1:999")
	must.Succeed(t, table.SetSocket(TCP4, shared))
	must.Succeed(t, table.Put(tcp("127.1.0.1:80"), TCP4))
	expect.True(t, table.Cookie(TCP4) != 0, "the table has no socket")
	listenTCP(t, "127.1.0.1:80")
	want(t, "127.1.0.1:80", "127.1.0.1:80 by 127.0.0.1:999")
	shared.Close()
	want(t, "127.1.0.1:80", "127.1.0.1:80 by 127.1.0.1:80")
	expect.Equal(t, table.Cookie(TCP4), 0, "the closed socket in the table")
}

func TestTheNextProcessContinues(t *testing.T) {
	inNamespace(t)
	first := opened(t)
	must.Succeed(t, first.SetSocket(TCP4, listenTCP(t, "127.0.0.1:999")))
	must.Succeed(t, first.Put(tcp("127.1.0.1:80"), TCP4))
	files := must.Get(first.Files())(t)
	first.Close() // as if the process had ended
	want(t, "127.1.0.1:80", "127.1.0.1:80 by 127.0.0.1:999")
	second := opened(t, files...)
	want(t, "127.1.0.1:80", "127.1.0.1:80 by 127.0.0.1:999")
	must.Succeed(t, second.Put(tcp("127.1.0.2:80"), TCP4))
	want(t, "127.1.0.2:80", "127.1.0.2:80 by 127.0.0.1:999")
	must.Succeed(t, second.Attached())
	second.Close()
	want(t, "127.1.0.1:80", "refused")
	expect.Equal(t, attached(t), 0, "programs that are left")
}

// attached returns the number of sk_lookup programs of the namespace.
func attached(t *testing.T) int {
	t.Helper()
	namespace := must.Get(os.Open("/proc/thread-self/ns/net"))(t)
	defer namespace.Close()
	all := must.Get(link.QueryPrograms(link.QueryOptions{Target: int(namespace.Fd()), Attach: ebpf.AttachSkLookup}))(t)
	return len(all.Programs)
}

// Objects of another version stay as they are: its process goes on.
func TestUnknownObjectsStayAttached(t *testing.T) {
	inNamespace(t)
	first := opened(t)
	must.Succeed(t, first.SetSocket(TCP4, listenTCP(t, "127.0.0.1:999")))
	must.Succeed(t, first.Put(tcp("127.1.0.1:80"), TCP4))
	files := must.Get(first.Files())(t)
	for i, f := range files {
		if f.Name() == socketsName { // as if it had another layout
			f.Close()
			files[i] = must.Get(os.Open("/dev/null"))(t)
		}
	}
	_, err := Open(files)
	expect.True(t, err != nil, "the second table has continued with an incomplete one")
	must.Succeed(t, first.Attached())
	want(t, "127.1.0.1:80", "127.1.0.1:80 by 127.0.0.1:999")
	expect.Equal(t, attached(t), 1, "programs")
}

// foreign attaches a program that passes the clients of every port to a socket, without
// replacing the choice of others.
func foreign(t *testing.T, to *net.TCPListener) {
	t.Helper()
	sockets := must.Get(ebpf.NewMap(socketsSpec()))(t)
	t.Cleanup(func() { sockets.Close() })
	must.Succeed(t, (&Table{sockets: sockets}).SetSocket(TCP4, to))
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.StoreImm(asm.RFP, -4, int64(TCP4), asm.Word),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnSkAssign.Call(),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.FnSkRelease.Call(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
		asm.Return(),
	}})
	must.Succeed(t, err)
	t.Cleanup(func() { p.Close() })
	namespace := must.Get(os.Open("/proc/thread-self/ns/net"))(t)
	defer namespace.Close()
	l := must.Get(link.AttachNetNs(int(namespace.Fd()), p))(t)
	t.Cleanup(func() { l.Close() })
}

func TestBesideAnotherProgram(t *testing.T) {
	for _, later := range []bool{false, true} {
		t.Run(fmt.Sprintf("later=%t", later), func(t *testing.T) {
			inNamespace(t)
			other := listenTCP(t, "127.0.0.1:777")
			if !later {
				foreign(t, other)
			}
			table := opened(t)
			if later {
				foreign(t, other)
			}
			must.Succeed(t, table.SetSocket(TCP4, listenTCP(t, "127.0.0.1:999")))
			must.Succeed(t, table.Put(tcp("127.1.0.1:80"), TCP4))
			want(t, "127.1.0.1:80", "127.1.0.1:80 by 127.0.0.1:999")
			want(t, "127.1.0.2:80", "127.1.0.2:80 by 127.0.0.1:777")
		})
	}
}

func TestAFullTable(t *testing.T) {
	inNamespace(t)
	table := opened(t)
	for n := range uint32(MaxFrontends) {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(n >> 16), byte(n >> 8), byte(n)}), 80)
		must.Succeed(t, table.Put(KeyOf(at, unix.IPPROTO_TCP), TCP4), "frontend %d", n)
	}
	expect.Len(t, must.Get(table.All())(t), MaxFrontends, "entries that were read")
	err := table.Put(tcp("10.0.0.1:80"), TCP4)
	expect.Is(t, err, ErrFull, "error %v instead of ErrFull", err)
	must.Succeed(t, table.Put(tcp("127.0.0.1:80"), Refused))
	must.Succeed(t, table.Delete(tcp("127.0.0.1:80")))
	must.Succeed(t, table.Put(tcp("10.0.0.1:80"), TCP4))
}
