//go:build system && long

package fleet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/need"
)

// machine is an agent in a VM of its own, with its own clock. Its Consul is the host's localConsul.
type machine struct {
	*agent
	spare chan net.Conn // connections by the guest
}

// guestPort is where the guest connects to.
const guestPort = "9100"

// newMachine creates an agent in a VM without starting it.
func (l *lab) newMachine(name string) *machine {
	l.t.Helper()
	vmrun := need.VM(l.t)
	guest := filepath.Join(l.t.TempDir(), "guest")
	build := exec.Command("go", "build", "-o", guest, "./guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		l.t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
	m := &machine{l.newHost(name), make(chan net.Conn)}
	l.proxyConsul(m.agent)
	// The VM reaches the loopback of its host at this address.
	l.configure(m.agent, consulSection("10.0.2.100:8500"))
	config := filepath.Join(m.dir, "ironvip.toml")
	text, err := os.ReadFile(config)
	l.must("configuration", err)
	// The guest has no servers: a health check would find none.
	l.must("configuration", os.WriteFile(config, append(text, "[health]\ndefault = \"none\"\n"...), 0o644))
	l.setProgram(m.agent, vmrun, "-mem", "1G", "-timeout", "0", "-reach", "8500,"+guestPort,
		"-files", fmt.Sprintf("%s:/usr/bin/ironvip,%s:%s", need.Binary(l.t), config, config), guest, m.dir, guestPort)
	l.serveGuest(m)
	return m
}

// serveGuest takes the guest's connections, and makes the agent's socket here one of the guest's.
func (l *lab) serveGuest(m *machine) {
	l.t.Helper()
	guest := m.node.Listen(netip.MustParseAddrPort("127.0.0.1:" + guestPort))
	socket, err := net.Listen("unix", filepath.Join(m.dir, "sock"))
	l.must(m.name+": a socket", err)
	ctx := l.t.Context()
	context.AfterFunc(ctx, func() { socket.Close() })
	go func() {
		for {
			c, err := guest.Accept()
			if err != nil {
				return // closed, at the end of the test
			}
			go func() {
				select {
				case m.spare <- c:
				case <-ctx.Done():
					c.Close()
				}
			}()
		}
	}()
	go func() {
		for {
			in, err := socket.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := m.send(ctx, "api")
				if err != nil {
					return
				}
				relay(ctx, in, out)
			}()
		}
	}()
}

// send sends a command on one of the guest's connections.
func (m *machine) send(ctx context.Context, command string) (net.Conn, error) {
	for {
		select {
		case c := <-m.spare:
			if _, err := io.WriteString(c, command+"\n"); err == nil {
				return c, nil
			}
			c.Close()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// setClock sets the machine's clock forward, or back.
func (m *machine) setClock(ctx context.Context, by time.Duration) error {
	c, err := m.send(ctx, fmt.Sprintf("clock %d", int(by.Seconds())))
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	answer, err := io.ReadAll(c)
	if err == nil && string(answer) != "ok\n" {
		err = fmt.Errorf("the guest answers %q", answer)
	}
	return err
}

// The clock of one host jumps by hours, forward and back. It keeps its session and its lead,
// writes, and follows the others.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	l := newLab(t, shape{agents: 2, servers: 1, reuse: 3 * time.Second})
	m := l.newMachine("lb3")
	l.agents = append(l.agents, m.agent)
	l.start(m.agent)
	l.record()
	// A cooldown ends by the wall clock of the leader.
	l.h.Reuse = 0

	l.scenario(t, "of a follower", func() { l.clockJumps(m) })
	l.scenario(t, "of the leader", func() {
		for _, a := range l.others(m.agent) {
			l.must("stop", a.proc.Stop())
		}
		expect.Equal(t, l.elected(m.agent), m.agent, "it is not the leader")
		for _, a := range l.others(m.agent) {
			l.start(a)
		}
		l.clockJumps(m)
		expect.Equal(t, l.elected(l.agents...), m.agent, "it is no longer the leader")
	})
}

func (l *lab) clockJumps(m *machine) {
	l.t.Helper()
	session := l.sessionOf(m.agent)
	for _, by := range []time.Duration{5 * time.Hour, -10 * time.Hour, 5 * time.Hour} {
		l.during(50, func() {
			ctx, cancel := context.WithTimeout(context.Background(), maxWait)
			defer cancel()
			l.must("set the clock", m.setClock(ctx, by))
		})
		l.allWrite(l.agents) // without load: the emulated host is slow, and loses most collisions
	}
	now := l.sessionOf(m.agent)
	expect.Equal(l.t, now, session, "session of %s", m.name)
}
