//go:build linux

package netlab_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

func namespace(t *testing.T) string {
	t.Helper()
	ns := must.Get(os.Readlink("/proc/thread-self/ns/net"))(t)
	return ns
}

func TestDoPutsTheThreadBack(t *testing.T) {
	l := netlab.New(t)
	home := namespace(t)
	l.Client.Do(func() {
		client := namespace(t)
		expect.True(t, client != home, "Do stayed at home")
		l.Director.Do(func() {
			if ns := namespace(t); ns == client || ns == home {
				t.Error("nested Do stayed")
			}
		})
		expect.Equal(t, namespace(t), client, "nested Do didn't come back")
		out, err := exec.Command("ip", "-4", "-o", "addr", "show", "dev", "eth0").Output()
		if err != nil || !strings.Contains(string(out), l.Client.Addr4.String()) {
			t.Errorf("a program in Do: %s, %v", out, err)
		}
	})
	expect.Equal(t, namespace(t), home, "Do didn't come back")
	func() {
		defer func() {
			if recover() == nil || namespace(t) != home {
				t.Error("a panic in Do didn't come back")
			}
		}()
		l.Client.Do(func() { panic("x") })
	}()
	done := make(chan string)
	go func() {
		defer func() { done <- namespace(t) }()
		l.Client.Do(runtime.Goexit) // as t.Fatal does
	}()
	expect.Equal(t, <-done, home, "a goroutine that ended in Do didn't come back")
}

// held counts the namespaces and sockets that this process holds open.
func held(t *testing.T) (n int) {
	t.Helper()
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	for _, e := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name()) // gone: the directory's own
		if strings.HasPrefix(target, "net:[") || strings.HasPrefix(target, "socket:[") {
			n++
		}
	}
	return n
}

func TestNothingIsLeft(t *testing.T) {
	before, home := held(t), namespace(t)
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			l := netlab.New(t)
			at := l.Backends[0].Serve("tcp", netip.AddrPortFrom(l.Backends[0].Addr4, 0))
			l.Backends[0].Serve("udp", netip.AddrPortFrom(l.Backends[0].Addr4, 0))
			if _, err := l.Client.Dial("tcp", at); err != nil { // silent and open: must not delay the end
				t.Fatal(err)
			}
		})
	}
	after := held(t)
	expect.AtMost(t, after, before, "%d namespaces and sockets were open before, %d are now", before, after)
	expect.Equal(t, namespace(t), home, "not at home")
	if ifs, err := net.Interfaces(); err != nil {
		t.Error(err)
	} else {
		for _, i := range ifs {
			if i.Name == "client" || strings.HasPrefix(i.Name, "backend") {
				t.Errorf("device %s was made outside", i.Name)
			}
		}
	}
}
