//go:build linux

package routers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/announcer"
	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/announce/routes"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// Settings are the settings of a speaker's process.
type Settings struct {
	RouterID netip.Addr         `json:"router_id"`
	Peers    []announce.BGPPeer `json:"peers"`
	Record   string             `json:"record"` // "": a file in the folder of the speaker
	// BFD are sessions that end the BGP session of the same peer when they fail.
	BFD []bfd.Settings `json:"bfd"`

	// Routes announces the prefixes by routes in the kernel instead of BGP (announce/routes).
	Routes bool `json:"routes"`

	// Away is how long the process waits at its start, as one that systemd or a busy host starts late.
	Away time.Duration `json:"away"`

	Socket   string         `json:"socket"` // where the process takes commands
	Prefixes []netip.Prefix `json:"prefixes"`
	NotReady bool           `json:"not_ready"` // more prefixes follow
	// Policies are more prefixes, with what their routes carry.
	Policies []announce.PrefixRoute `json:"policies"`
}

// With returns a prefix whose route carries keys.
func With(p netip.Prefix, backends int, keys announce.RouteKeys) announce.PrefixRoute {
	policy := announce.RoutePolicy{RouteKeys: keys}
	return announce.PrefixRoute{Prefix: p, Route: announce.Route{Policy: policy.Text(), Backends: backends}}
}

// plain returns prefixes without choices.
func plain(prefixes []netip.Prefix) (all []announce.PrefixRoute) {
	for _, p := range prefixes {
		all = append(all, announce.PrefixRoute{Prefix: p})
	}
	return all
}

const speakerVariable = "IRONVIP_TEST_SPEAKER" // a file with Settings in JSON

// Main runs a speaker if this process is the child of StartSpeaker, and else the tests. TestMain
// calls it.
func Main(m *testing.M) {
	if path := os.Getenv(speakerVariable); path != "" {
		if err := runSpeaker(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runSpeaker(path string) error {
	var c Settings
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return err
	}
	time.Sleep(c.Away)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	announced, inKernel := announce.NewPrefixRoutes(), announce.NewPrefixes()
	ready, inKernelReady := announced.Initializer(), inKernel.Initializer()
	add := func(all []announce.PrefixRoute) {
		for _, r := range all {
			if c.Routes {
				inKernel.Set(r.Prefix)
			} else {
				announced.Set(r)
			}
		}
	}
	add(plain(c.Prefixes))
	add(c.Policies)
	if !c.NotReady {
		ready()
		inKernelReady()
	}
	if c.Routes {
		go routes.New(inKernel, log).Run(ctx)
	}
	var fds []int
	json.Unmarshal([]byte(os.Getenv(keptVariable)), &fds)
	kept := announcer.Inherit(c.Socket, fds, log)
	s := bgp.New(ctx, bgp.Config{RouterID: c.RouterID, Peers: c.Peers, Record: c.Record, Log: log, Inherited: kept.BGP}, announced)
	f := bfd.New(bfd.Config{Log: log, Inherited: kept.BFD, Until: kept.At.Add(10 * time.Second), Report: func(st bfd.Status) {
		if st.State == bfd.Down && st.Failed {
			s.PathDown(st.Peer.String(), "BFD: "+st.Reason)
		}
	}})
	for _, x := range c.BFD {
		f.Set(x)
	}
	os.Remove(c.Socket)
	l, err := net.Listen("unix", c.Socket)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	prefixes := func(r *http.Request) (all []netip.Prefix) {
		b, _ := io.ReadAll(r.Body)
		json.Unmarshal(b, &all)
		return all
	}
	mux.HandleFunc("/announce", func(_ http.ResponseWriter, r *http.Request) { add(plain(prefixes(r))) })
	mux.HandleFunc("/policies", func(_ http.ResponseWriter, r *http.Request) {
		var all []announce.PrefixRoute
		b, _ := io.ReadAll(r.Body)
		json.Unmarshal(b, &all)
		add(all)
	})
	mux.HandleFunc("/withdraw", func(_ http.ResponseWriter, r *http.Request) {
		for _, p := range prefixes(r) {
			announced.Delete(p)
			inKernel.Delete(p)
		}
	})
	mux.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) { ready() })
	mux.HandleFunc("/drain", func(http.ResponseWriter, *http.Request) { s.Drain(true) })
	mux.HandleFunc("/shutdown", func(http.ResponseWriter, *http.Request) { s.Shutdown() })
	mux.HandleFunc("/sessions", func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(s.Sessions()) })
	mux.HandleFunc("/ranges", func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(s.Ranges()) })
	mux.HandleFunc("/bfd", func(w http.ResponseWriter, r *http.Request) {
		var x bfd.Settings
		if b, _ := io.ReadAll(r.Body); json.Unmarshal(b, &x) == nil && x.Peer.IsValid() {
			f.Set(x)
		}
		json.NewEncoder(w).Encode(f.Sessions())
	})
	generation := os.Getenv(generationVariable) + "."
	mux.HandleFunc("/generation", func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(generation) })
	next := make(chan os.Signal, 1)
	signal.Notify(next, syscall.SIGUSR1)
	var handsOver atomic.Bool
	go func() {
		<-next
		handsOver.Store(true)
		os.Setenv(generationVariable, generation)
		fmt.Fprintln(os.Stderr, restart(c.Socket, announcer.Kept{At: time.Now(), BFD: f.HandOver(10 * time.Second), BGP: s.HandOver()}, log))
		os.Exit(1)
	}()
	server := http.Server{Handler: mux}
	go server.Serve(l)
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	if s.Wait(); handsOver.Load() {
		select {} // until restart replaces this process
	}
	stop()
	<-done
	return server.Shutdown(context.Background()) // the command that ended it is answered
}

const (
	keptVariable       = "IRONVIP_TEST_KEPT" // descriptors
	generationVariable = "IRONVIP_TEST_GENERATION"
)

// restart replaces this process by a next one, with the descriptors that a service manager would store.
func restart(socket string, kept announcer.Kept, log *slog.Logger) error {
	fds := []int{}
	announcer.Keep(kept, socket, func(_ string, c syscall.Conn) error {
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var failed error
		err = raw.Control(func(fd uintptr) {
			var stored int
			stored, failed = syscall.Dup(int(fd)) // without FD_CLOEXEC
			fds = append(fds, stored)
		})
		return cmp.Or(err, failed)
	}, log)
	list, err := json.Marshal(fds)
	if err != nil {
		return err
	}
	os.Setenv(keptVariable, string(list))
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// Speaker is a process with announce/bgp and announce/bfd in a namespace.
type Speaker struct {
	*process.Process
	t      testing.TB
	socket string
	config Settings
	path   string // of the settings
	client http.Client
}

// StartSpeaker starts a speaker, which begins at once. It keeps its record in its own folder, over
// restarts.
func StartSpeaker(t testing.TB, n *netlab.Node, c Settings) *Speaker {
	t.Helper()
	dir := folder(t, "")
	c.Socket = filepath.Join(dir, "socket")
	if c.Record == "" {
		c.Record = filepath.Join(dir, "record")
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, dir, "settings.json", string(b))
	s := &Speaker{t: t, socket: c.Socket, config: c, path: path}
	s.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", c.Socket)
	}}
	s.Process = process.New("/usr/bin/env", filepath.Join(dir, "speaker.log"), n, speakerVariable+"="+path, os.Args[0])
	t.Cleanup(func() {
		s.Kill()
		s.client.CloseIdleConnections()
		if t.Failed() {
			t.Logf("the end of the log of the speaker:\n%s", s.LogEnd(4000))
		}
	})
	s.StartAgain()
	return s
}

// StartAgain starts the process after its end.
func (s *Speaker) StartAgain() {
	s.t.Helper()
	os.Remove(s.socket)
	s.client.CloseIdleConnections()
	if err := s.Start(); err != nil {
		s.t.Fatal(err)
	}
	wait.For(s.t, "the speaker answers", func() error {
		if s.Pid() == 0 {
			s.t.Fatalf("the speaker ended: %s", s.LogEnd(2000))
		}
		_, err := s.client.Get("http://speaker/sessions")
		return err
	})
}

// Restart replaces the process by a next one, which gets the sessions and has other settings.
func (s *Speaker) Restart(change func(*Settings)) {
	s.t.Helper()
	change(&s.config)
	b, err := json.Marshal(s.config)
	if err != nil {
		s.t.Fatal(err)
	}
	write(s.t, filepath.Dir(s.path), filepath.Base(s.path), string(b))
	var before, now string
	s.post("generation", nil, &before)
	if err := syscall.Kill(s.Pid(), syscall.SIGUSR1); err != nil {
		s.t.Fatal(err)
	}
	wait.For(s.t, "the next process answers", func() error {
		r, err := s.client.Get("http://speaker/generation")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if err := json.NewDecoder(r.Body).Decode(&now); err != nil || now == before {
			return fmt.Errorf("generation %q, %v", now, err)
		}
		return nil
	})
}

// Do runs a command: announce or withdraw with prefixes, ready, drain, shutdown.
func (s *Speaker) Do(command string, prefixes ...netip.Prefix) {
	s.t.Helper()
	s.post(command, prefixes, nil)
}

// Announce announces prefixes with what their routes carry.
func (s *Speaker) Announce(all ...announce.PrefixRoute) {
	s.t.Helper()
	s.post("policies", all, nil)
}

func (s *Speaker) post(command string, in, out any) {
	s.t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := s.client.Post("http://speaker/"+command, "application/json", bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	if out != nil {
		if err := json.NewDecoder(r.Body).Decode(out); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Sessions returns the BGP sessions.
func (s *Speaker) Sessions() (all []bgp.Session) {
	s.t.Helper()
	s.post("sessions", nil, &all)
	return all
}

// BFD returns the BFD sessions.
func (s *Speaker) BFD() (all []bfd.Status) {
	s.t.Helper()
	s.post("bfd", nil, &all)
	return all
}

// ChangeBFD sets a BFD session.
func (s *Speaker) ChangeBFD(c bfd.Settings) {
	s.t.Helper()
	s.post("bfd", c, nil)
}

// Descriptors returns how many files and sockets the process has.
func (s *Speaker) Descriptors() int {
	s.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Pid()))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(all)
}

// Ranges returns the ranges of routers that may connect.
func (s *Speaker) Ranges() (all []bgp.Range) {
	s.t.Helper()
	s.post("ranges", nil, &all)
	return all
}

// AwaitUp waits until the first peer's session is established, which of a range is a peer only then.
func (s *Speaker) AwaitUp() bgp.Session {
	s.t.Helper()
	var all []bgp.Session
	wait.Until(s.t, "the BGP session is established", func() bool {
		all = s.Sessions()
		return len(all) > 0 && all[0].State == session.Established
	}, func() any { return fmt.Sprintf("%+v", all) })
	return all[0]
}

// AwaitReason waits until the first peer's session is down for a reason that contains text.
func (s *Speaker) AwaitReason(text string) bgp.Session {
	s.t.Helper()
	var last bgp.Session
	wait.Until(s.t, "the reason "+text, func() bool {
		last = s.Sessions()[0]
		return last.State != session.Established && strings.Contains(last.Reason, text)
	}, func() any { return fmt.Sprintf("%+v", last) })
	return last
}

// AwaitBFD waits until the first BFD session has a state.
func (s *Speaker) AwaitBFD(state bfd.State) bfd.Status {
	s.t.Helper()
	wait.Until(s.t, "the BFD session is "+state.String(), func() bool { return s.BFD()[0].State == state },
		func() any { return fmt.Sprintf("%+v", s.BFD()[0]) })
	return s.BFD()[0]
}
