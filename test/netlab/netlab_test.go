//go:build linux

package netlab_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

func namespace(t *testing.T) string {
	t.Helper()
	ns := must.Get(os.Readlink("/proc/thread-self/ns/net"))(t)
	return ns
}

// addresses returns a node's addresses of both families.
func addresses(n *netlab.Node) []netip.Addr { return []netip.Addr{n.Addr4, n.Addr6} }

func TestEveryNodeReachesEveryOther(t *testing.T) {
	l := netlab.New(t)
	l.AddBackend()
	nodes := append([]*netlab.Node{l.Client, l.Director}, l.Backends...)
	for _, server := range nodes {
		for _, addr := range addresses(server) {
			for _, network := range []string{"tcp", "udp"} {
				at := server.Serve(network, netip.AddrPortFrom(addr, 0))
				for _, client := range nodes {
					a, err := client.Ask(network, at)
					must.Succeed(t, err, "%s asks %s at %s %v", client.Name, server.Name, network, at)
					expect.Equal(t, a.Name, server.Name, "%s asks %s: answer from", client.Name, server.Name)
					if client != server && client != l.Director && a.Client.Addr() != client.Addr4 && a.Client.Addr() != client.Addr6 {
						t.Errorf("%s saw %s as %v", server.Name, client.Name, a.Client)
					}
				}
			}
		}
	}
	// Without forwarding by the director, a backend doesn't reach the client.
	l.Director.Sysctl("ipv4/ip_forward", "0")
	at := l.Client.Serve("tcp", netip.AddrPortFrom(l.Client.Addr4, 0))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if c, err := l.Backends[0].DialContext(ctx, "tcp", at.String()); err == nil {
		c.Close()
		t.Error("a backend reaches the client while the director doesn't forward")
	}
}

func TestConnectionsStayAndEnd(t *testing.T) {
	l := netlab.New(t)
	at := l.Backends[0].Serve("tcp", netip.AddrPortFrom(l.Backends[0].Addr4, 80))
	c := must.Get(l.Client.Dial("tcp", at))(t)
	for range 3 {
		a, err := c.Ask()
		if err != nil || a.Name != "backend1" || a.Client.String() != c.LocalAddr().String() {
			t.Fatalf("got %v, %v", a, err)
		}
	}
	if _, err := l.Client.Ask("tcp", netip.AddrPortFrom(l.Backends[0].Addr4, 81)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody listens: got %v, want refused", err)
	}
	if _, err := l.Client.DialContext(t.Context(), "tcp", "localhost:80"); err == nil {
		t.Error("dialled by name")
	}
}

func TestHTTPThroughALab(t *testing.T) {
	l := netlab.New(t)
	at := netip.AddrPortFrom(l.Backends[1].Addr6, 8080)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RemoteAddr) })}
	go srv.Serve(l.Backends[1].Listen(at))
	defer srv.Close()
	tr := &http.Transport{DialContext: l.Client.DialContext}
	defer tr.CloseIdleConnections()
	resp := must.Get((&http.Client{Transport: tr}).Get("http://" + at.String()))(t)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasPrefix(string(body), "["+l.Client.Addr6.String()+"]:") {
		t.Errorf("got %q, %v", body, err)
	}
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

// A node serves and dials from a range of addresses. So does a node in this process's own
// namespace.
func TestHeldAddressesAndNodesHere(t *testing.T) {
	l := netlab.New(t)
	held := netip.MustParsePrefix("10.78.0.0/24")
	l.Client.Holds(held)
	l.Director.Via(held, l.Client.Addr4)
	at := l.Backends[0].Serve("tcp", netip.AddrPortFrom(l.Backends[0].Addr4, 0))
	c := must.Get(l.Client.DialFrom("tcp", netip.MustParseAddr("10.78.0.9"), at))(t)
	if a, err := c.Ask(); err != nil || a.Client.Addr().String() != "10.78.0.9" {
		t.Errorf("a held address is seen as %v, %v", a, err)
	}
	home := netlab.Here(t, "home", netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback())
	at = home.Serve("udp", netip.AddrPortFrom(home.Addr4, 0))
	if a, err := home.Ask("udp", at); err != nil || a.Name != "home" {
		t.Errorf("here: %v, %v", a, err)
	}
	if a, err := l.Client.Ask("udp", at); err == nil {
		t.Errorf("a client in another namespace reaches it: %v", a)
	}
}
