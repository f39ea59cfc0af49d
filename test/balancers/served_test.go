//go:build system

package balancers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/vip"
)

const (
	// servedVariable makes a process of this test a balancer: its name, its address and those of the
	// backends, separated by spaces.
	servedVariable = "IRONVIP_TEST_BALANCER"
	// profileVariable is the directory for the profiles of these balancers. Each overwrites the last.
	profileVariable = "IRONVIP_TEST_PROFILE"
)

func TestMain(m *testing.M) {
	if what := strings.Fields(os.Getenv(servedVariable)); len(what) > 2 {
		if err := serve(what[0], what[1], what[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve balances until SIGTERM.
func serve(name, at string, backends []string) error {
	debug.SetGCPercent(50) // as the agent does
	if dir := os.Getenv(profileVariable); dir != "" {
		file, err := os.Create(dir + "/" + name + ".pprof")
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if name == "copy" {
		return serveCopy(ctx, at, backends)
	}
	protocol := vip.TCP
	if name == "ironvip-udp" {
		protocol = vip.UDP
	}
	return serveProxy(ctx, protocol, netip.MustParseAddrPort(at), backends)
}

// serveProxy runs the userspace proxy with one frontend.
func serveProxy(ctx context.Context, protocol vip.Protocol, at netip.AddrPort, backends []string) error {
	target := proxy.New(proxy.Options{})
	f := &vip.Frontend{Key: vip.FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: protocol}, Kind: vip.OnVIP,
		Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Scheduler: vip.RoundRobin, Forward: vip.ForwardNAT}
	for _, b := range backends {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: netip.MustParseAddrPort(b), Weight: 1})
	}
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: f.Key, New: f}}
	if err := errors.Join(target.Apply(ctx, batch), batch[0].Err); err != nil {
		return err
	}
	<-ctx.Done()
	return target.Close()
}

// serveCopy is the shortest balancer in Go: a goroutine for each direction, which io.Copy splices.
func serveCopy(ctx context.Context, at string, backends []string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	var turn atomic.Uint64
	for {
		client, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		go func() {
			defer client.Close()
			backend, err := net.Dial("tcp", backends[turn.Add(1)%uint64(len(backends))])
			if err != nil {
				return
			}
			defer backend.Close()
			go func() {
				io.Copy(backend, client) //nolint:errcheck // the end counts
				backend.(*net.TCPConn).CloseWrite()
			}()
			io.Copy(client, backend) //nolint:errcheck // the end counts
			client.(*net.TCPConn).CloseWrite()
		}()
	}
}
