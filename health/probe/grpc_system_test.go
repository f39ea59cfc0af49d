//go:build system

package probe

import (
	"crypto/x509"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// etcd serves the standard health service with the gRPC library of Go.
// Slow: etcd starts four times.
func TestGRPCServer(t *testing.T) {
	bin := need.Server(t, "etcd")
	for _, f := range families {
		for _, secure := range []bool{false, true} {
			name, scheme := f.name, "http"
			if secure {
				name, scheme = name+" TLS", "https"
			}
			t.Run(name, func(t *testing.T) {
				dir, host := t.TempDir(), netip.MustParseAddr(f.host)
				ports := freeport.Reserve(t, nil, host)
				client, peer := netip.AddrPortFrom(host, ports[1]), "http://"+netip.AddrPortFrom(host, ports[2]).String()
				ca := authority.New(t)
				cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
				ca.Server(t, []netip.Addr{host}).Write(t, cert, key)
				roots := x509.NewCertPool()
				roots.AddCert(ca.Cert)
				args := []string{"--data-dir", filepath.Join(dir, "data"), "--name", "a", "--listen-client-urls", scheme + "://" + client.String(),
					"--advertise-client-urls", scheme + "://" + client.String(), "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
					"--initial-cluster", "a=" + peer}
				if secure {
					args = append(args, "--cert-file", cert, "--key-file", key)
				}
				etcd := process.New(bin, filepath.Join(dir, "log"), nil, args...)
				must.Succeed(t, etcd.Start())
				defer etcd.Kill()
				check := vip.HealthCheck{Type: vip.CheckGRPC, TLS: secure, Timeout: vip.MaxCheckTimeout}
				other := check
				other.Service = "no such service"
				var got done
				wait.Until(t, "a serving etcd", func() bool {
					got = probeOnce(t, Options{RootCAs: roots}, NewTarget(client, check))[0]
					return got.outcome == OK
				}, func() any { return got }, func() any { return etcd.LogEnd(2000) })
				if got := probeOnce(t, Options{RootCAs: roots}, NewTarget(client, other))[0]; got.outcome != NotServing {
					t.Errorf("an unknown service: %v, %q", got.outcome, got.reason)
				}
				must.Succeed(t, etcd.Pause())
				check.Timeout = vip.MinCheckInterval
				if got := probeOnce(t, Options{RootCAs: roots}, NewTarget(client, check))[0]; got.outcome != TimedOut {
					t.Errorf("a stopped server: %v, %q", got.outcome, got.reason)
				}
				etcd.Kill()
				check.Timeout = vip.MaxCheckTimeout
				if got := probeOnce(t, Options{RootCAs: roots}, NewTarget(client, check))[0]; got.outcome != Refused {
					t.Errorf("a killed server: %v, %q", got.outcome, got.reason)
				}
			})
		}
	}
}
