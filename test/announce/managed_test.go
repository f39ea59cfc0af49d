//go:build system

package announce

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

const managerVariable = "IRONVIP_TEST_MANAGER" // the socket for notifications

func TestMain(m *testing.M) {
	if socket := os.Getenv(managerVariable); socket != "" {
		if err := manage(socket, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// manage runs a program as systemd does, with a store of descriptors, until SIGTERM. SIGUSR1 restarts the program.
func manage(socket string, args []string) error {
	runtime.LockOSThread() // the program ends with this thread
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1)
	at := &net.UnixAddr{Name: socket, Net: "unixgram"}
	in, err := net.ListenUnixgram("unixgram", at)
	if err != nil {
		return err
	}
	stored := []*os.File{}
	ended := make(chan struct{})
	go func() { // always: the kernel queues ten notifications, and blocks the one who sends the next one
		b, oob := make([]byte, 4096), make([]byte, 1024)
		for {
			n, oobn, _, _, err := in.ReadMsgUnix(b, oob)
			switch text := string(b[:n]); {
			case err != nil:
				close(ended)
				return
			case text == "end":
				ended <- struct{}{}
			case strings.Contains(text, "FDSTORE=1"):
				messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
				for i := range messages {
					fds, _ := unix.ParseUnixRights(&messages[i])
					for _, fd := range fds {
						stored = append(stored, os.NewFile(uintptr(fd), "stored"))
					}
				}
			case strings.Contains(text, "FDSTOREREMOVE=1"):
				for _, f := range stored {
					f.Close()
				}
				stored = nil
			}
		}
	}()
	read := func() { // until the notifications of the program, which has ended, are read
		out, err := net.DialUnix("unixgram", nil, at)
		if err != nil {
			return
		}
		defer out.Close()
		if _, err := out.Write([]byte("end")); err == nil {
			<-ended
		}
	}
	for {
		cmd := exec.Command("/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$@"`, "sh"}, args...)...)
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, fmt.Sprintf("LISTEN_FDS=%d", len(stored)))
		cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stderr, os.Stderr, stored
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return err
		}
		s := <-signals
		cmd.Process.Signal(syscall.SIGTERM)
		err := cmd.Wait()
		read()
		fmt.Fprintf(os.Stderr, "manager: %v, %d stored, ended with %v\n", s, len(stored), err)
		if s == syscall.SIGTERM {
			return err
		}
	}
}

// With a service manager that stores descriptors, restarts of the announcer change nothing in a router with BFD that removes the
// routes of a dead host at once. The agent sends the settings to the next process in time.
func TestManagedRestart(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 2)
	a := l.hosts[0]
	node := l.Join("router")
	socket := filepath.Join(a.dir, "notify")
	a.announcer = process.New("/usr/bin/env", filepath.Join(a.dir, "announcer.log"), a.Node, managerVariable+"="+socket, must.Get(os.Executable())(t),
		need.Binary(t), "announcer", "--socket", filepath.Join(a.dir, "control.sock"))
	l.start("bgp", bgpPeer(node.Addr4, 65000, `bfd = "10x100ms"`)) // a busy machine is no failure
	bird := routers.StartBird(t, node, birdConfig(l, "bfd { interval 100 ms; multiplier 10; };"))
	wait.Until(t, "all routes", func() bool { return bird.Count() == len(l.hosts)*len(vips()) }, func() any { return bird.Ask("show", "route") })
	a.awaitPeers(2, "an established session and path", func(p v1.AnnouncePeer) bool { return p.Up })
	awaitWays(t, node, 2)
	events, before := routers.WatchRoutes(t, node), bird.Since(a.Name)
	for n := range 3 {
		must.Succeed(t, syscall.Kill(a.announcer.Pid(), syscall.SIGUSR1))
		wait.Until(t, "the next process has the sessions", func() bool {
			log := a.announcer.LogEnd(1 << 20)
			return strings.Count(log, "1 stored") == n+1 && strings.Count(log[strings.LastIndex(log, "1 stored"):], "BGP session established") == 1
		}, func() any { return a.announcer.LogEnd(3000) })
		a.awaitPeers(2, "an established session and path", func(p v1.AnnouncePeer) bool { return p.Up })
	}
	expect.Between(t, bird.Since(a.Name)-before, -routers.SinceError, routers.SinceError, "a new session in BIRD")
	expect.AtMost(t, events.Added.Load()+events.Deleted.Load(), 0, "changes of routes in the router's kernel by restarts of an announcer")
	expect.Equal(t, bird.Count(), len(l.hosts)*len(vips()), "routes")
}
