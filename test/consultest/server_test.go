//go:build system

package consultest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// put and get write and read a key with retries, because a cluster on a busy machine may briefly
// lose its leader.
func put(t *testing.T, s *Server, key, value string) uint64 {
	t.Helper()
	s.eventually("writing "+key, func(ctx context.Context) error {
		_, err := s.Client.KV().Put(&api.KVPair{Key: key, Value: []byte(value)}, (&api.WriteOptions{}).WithContext(ctx))
		return err
	})
	_, index := get(t, s, key)
	return index
}

func get(t *testing.T, s *Server, key string) (value string, index uint64) {
	t.Helper()
	s.eventually("reading "+key, func(ctx context.Context) error {
		pair, _, err := s.Client.KV().Get(key, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		if err == nil && pair != nil {
			value, index = string(pair.Value), pair.ModifyIndex
		}
		return err
	})
	return value, index
}

func wants(t *testing.T, s *Server, key, want string) {
	t.Helper()
	if got, _ := get(t, s, key); got != want {
		t.Errorf("%s: %s is %q, want %q", s.Name, key, got, want)
	}
}

func TestStopKillAndRestartKeepDataAndPorts(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	put(t, s, "a", "1")
	addr := s.Addr
	for name, end := range map[string]func(){"stop": s.Stop, "kill": s.Kill} {
		pid := s.Pid()
		end()
		if s.Running() || s.Pid() != 0 {
			t.Fatalf("%s: it still runs", name)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Fatalf("%s: process %d is not gone: %v", name, pid, err)
		}
		if _, _, err := s.Client.KV().Get("a", nil); err == nil {
			t.Fatalf("%s: it still answers", name)
		}
		end() // a second call has no effect
		s.Start()
		s.WaitReady()
		wants(t, s, "a", "1")
	}
	pid := s.Pid()
	s.Restart()
	if s.Pid() == pid {
		t.Error("a restart is another process")
	}
	wants(t, s, "a", "1")
	if s.Addr != addr {
		t.Error("another address")
	}
}

func TestMemoryComesBackEmpty(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Memory: true})
	put(t, s, "a", "1")
	s.Restart()
	wants(t, s, "a", "")
}

func TestAPausedServerIsSilentAndComesBack(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Memory: true})
	put(t, s, "a", "1")
	s.Pause()
	if s.Running() {
		t.Error("a paused server is running")
	}
	// The kernel accepts connections, but the server never answers.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, _, err := s.Client.KV().Get("a", (&api.QueryOptions{}).WithContext(ctx)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused server answers: %v", err)
	}
	s.Continue()
	s.WaitReady()
	wants(t, s, "a", "1")
	s.Pause()
	s.Stop() // continues it so that it can end
	s.Start()
	s.Pause()
	s.Kill()
}

func TestRestoreGoesBackToASnapshot(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	first := put(t, s, "a", "1")
	snapshot := s.Snapshot()
	put(t, s, "a", "2")
	put(t, s, "b", "1")
	s.Restore(snapshot)
	if got, index := get(t, s, "a"); got != "1" || index != first {
		t.Errorf("a is %q of index %d, want the former 1 of %d", got, index, first)
	}
	wants(t, s, "b", "")
}

func TestRestartFromAnOlderDiskSetsIndexesBack(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	first := put(t, s, "a", "1")
	disk := s.Disk()
	wants(t, s, "a", "1") // the server still runs
	var later uint64
	for i := range 50 {
		later = put(t, s, "a", fmt.Sprint("later", i))
	}
	for range 2 { // a copy can be used again
		s.RestartFrom(disk)
		got, index := get(t, s, "a")
		if got != "1" || index != first {
			t.Errorf("a is %q of index %d, want 1 of %d", got, index, first)
		}
		_, meta, err := s.Client.KV().List("a", nil)
		if err != nil || meta.LastIndex >= later {
			t.Errorf("the store's index is %d (%v), and was %d: it did not go back", meta.LastIndex, err, later)
		}
		put(t, s, "b", "1")
	}
}

func TestTheUnixSocketIsAnAddress(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Memory: true})
	put(t, s, "a", "1")
	c, err := api.NewClient(&api.Config{Address: "unix://" + s.Socket})
	if err != nil {
		t.Fatal(err)
	}
	pair, _, err := c.KV().Get("a", nil)
	if err != nil || string(pair.Value) != "1" {
		t.Fatalf("%v, %v", pair, err)
	}
}

func TestOnlyTokensMayWithACLs(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{ACL: true})
	put(t, s, "ironvip/a", "1")
	put(t, s, "else/a", "1")
	secret := s.NewToken(`key_prefix "ironvip/" { policy = "write" }`)
	other := s.NewToken(`key_prefix "ironvip/" { policy = "read" }`)

	read := func(token, key string) bool {
		pair, _, err := s.NewClient(token).KV().Get(key, nil)
		return err == nil && pair != nil
	}
	write := func(token, key string) bool {
		_, err := s.NewClient(token).KV().Put(&api.KVPair{Key: key, Value: []byte("2")}, nil)
		return err == nil
	}
	for name, got := range map[string][2]bool{
		"a token reads what it may":         {read(secret, "ironvip/a"), true},
		"a token writes what it may":        {write(secret, "ironvip/a"), true},
		"a token reads nothing else":        {read(secret, "else/a"), false},
		"nobody reads without a token":      {read("", "ironvip/a"), false},
		"a token of reading writes nothing": {write(other, "ironvip/a"), false},
		"a token of reading reads":          {read(other, "ironvip/a"), true},
	} {
		if got[0] != got[1] {
			t.Error("not so: " + name)
		}
	}
	s.RevokeToken(secret)
	if read(secret, "ironvip/a") || !read(other, "ironvip/a") {
		t.Error("the token revoked still reads, or another one doesn't any more")
	}
	s.Restart()
	if !read(other, "ironvip/a") || !read(s.Token, "else/a") {
		t.Error("tokens don't outlive a restart")
	}
}

func TestTLSAsksForACertificateOfItsAuthority(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{TLS: true, ACL: true})
	put(t, s, "a", "1")
	if !strings.HasPrefix(s.URL, "https://") {
		t.Fatalf("URL is %s", s.URL)
	}
	ask := func(conf *tls.Config) error {
		tr := &http.Transport{TLSClientConfig: conf}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr, Timeout: asking}).Get(s.URL + "/v1/status/leader")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	right := s.TLS.config
	if err := ask(right); err != nil {
		t.Error(err)
	}
	if err := ask(&tls.Config{RootCAs: right.RootCAs}); err == nil {
		t.Error("it takes a client without a certificate")
	}
	stranger := authority.New(t)
	wrong := stranger.Trusts(stranger.Client(t, "stranger"))
	if err := ask(&tls.Config{RootCAs: right.RootCAs, Certificates: wrong.Certificates}); err == nil {
		t.Error("it takes a client of another authority")
	}
	if err := ask(&tls.Config{RootCAs: wrong.RootCAs, Certificates: right.Certificates}); err == nil {
		t.Error("another authority vouches for it")
	}
	// The same files as for the product's own client.
	c, err := api.NewClient(&api.Config{Address: s.URL, Token: s.Token, TLSConfig: api.TLSConfig{CAFile: s.TLS.CA, CertFile: s.TLS.Cert, KeyFile: s.TLS.Key}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.KV().Get("a", nil); err != nil {
		t.Error(err)
	}
}

func TestConfigChangesConsulsDefaults(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Memory: true, Config: map[string]any{"limits": map[string]any{"http_max_conns_per_client": 2}}})
	hold := func(n int) (failed int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		errs := make(chan error)
		for range n {
			go func() {
				_, _, err := s.Client.KV().Get("a", (&api.QueryOptions{WaitIndex: 1 << 40, WaitTime: 300 * time.Millisecond}).WithContext(ctx))
				errs <- err
			}()
		}
		for range n {
			if <-errs != nil {
				failed++
			}
		}
		return failed
	}
	if hold(10) == 0 {
		t.Error("the limit of connections is not in effect")
	}
}

func TestTwoDatacentres(t *testing.T) {
	t.Parallel()
	one := Start(t, Options{Memory: true})
	two := Start(t, Options{Memory: true, Datacenter: "dc2", Name: "far", WAN: one})
	put(t, two, "a", "far")
	one.eventually("joined by dc2", func(ctx context.Context) error {
		pair, _, err := one.Client.KV().Get("a", (&api.QueryOptions{Datacenter: "dc2"}).WithContext(ctx))
		if err == nil && (pair == nil || string(pair.Value) != "far") {
			err = fmt.Errorf("a is %v", pair)
		}
		return err
	})
	wants(t, one, "a", "")
}

func TestAServerInANamespace(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	here, there := l.Backends[0], l.Backends[1]
	s := Start(t, Options{In: here, Addr: here.Addr4})
	put(t, s, "a", "1") // its client connects from the namespace
	s.Restart()
	wants(t, s, "a", "1")
	other := &http.Client{Transport: &http.Transport{DialContext: there.DialContext, DisableKeepAlives: true}, Timeout: asking}
	resp, err := other.Get(s.URL + "/v1/status/leader")
	if err != nil {
		t.Fatalf("from another namespace: %v", err)
	}
	resp.Body.Close()
	namespace := func(pid int) string {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	if namespace(s.Pid()) == namespace(os.Getpid()) {
		t.Error("it runs in the test's own namespace")
	}
}

func TestIPv6(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	s := Start(t, Options{Memory: true, In: l.Client, Addr: l.Client.Addr6})
	put(t, s, "a", "1")
	wants(t, s, "a", "1")
}

// TestNothingOutlivesTheTest runs this binary again, which starts a server and is then killed.
func TestNothingOutlivesTheTest(t *testing.T) {
	t.Parallel()
	need.Server(t, "consul")
	if os.Getenv("CONSULTEST_VICTIM") != "" {
		s := Start(t, Options{Memory: true})
		fmt.Printf("pid=%d dir=%s\n", s.Pid(), s.dir)
		os.Stdout.Sync()
		s.Pause() // stopped processes must die, too
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNothingOutlivesTheTest$", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), "CONSULTEST_VICTIM=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var pid int
	var dir string
	if _, err := fmt.Fscanf(out, "pid=%d dir=%s\n", &pid, &dir); err != nil {
		t.Fatalf("the child said nothing: %v", err)
	}
	defer os.RemoveAll(dir)
	cmd.Process.Kill()
	wait.Until(t, "the server ends with its test", func() bool { return process.Gone(pid) })
}
