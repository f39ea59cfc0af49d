//go:build system

package resolvers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// stub is where systemd-resolved listens.
const stub = "127.0.0.53:53"

// startAgent starts the agent as its own user, and waits until it answers.
func (s *system) startAgent() {
	s.t.Helper()
	s.service("web", "prod", 1)
	s.service("shop", "default", 2)
	s.runAgent(`resolver = "resolved"`)
}

// runAgent is startAgent without new services, with keys of [dns].
func (s *system) runAgent(keys string) {
	s.t.Helper()
	s.configure(keys)
	s.agent = s.inside("agent", asAgent(s.file("ironvip"), "agent", "--config", s.dir)...)
	s.await(serving, "web.prod.svc."+zone, dns.TypeA)
}

// The agent, which is not root, sets and keeps the routing domain, also over a restart: meanwhile names
// fail, and nothing says that they don't exist. It reverts the domain if it is not wanted, at a reload
// and at a start.
func TestResolved(t *testing.T) {
	t.Parallel()
	s := newSystem(t, true)
	s.startAgent()
	s.await(stub, "web.prod.svc."+zone, dns.TypeA)
	lookups(t, s.host, stub)
	visible(t, s.host, stub)
	others := func() {
		t.Helper()
		if got := s.await(stub, "www.example.com", dns.TypeA); got[0] != "192.0.2.53" {
			t.Errorf("a name outside the domain has the addresses %v", got)
		}
	}
	others()
	if got := s.resolvectl("domain", "ironvip0"); !strings.Contains(got, "~"+zone) || !strings.Contains(got, "~96.10.in-addr.arpa") {
		t.Errorf("domains of the link: %s", got)
	}

	for _, fault := range []struct {
		name string
		do   func()
	}{
		{"systemd-resolved restarted", func() { s.restartResolved() }},
		{"systemd-resolved restarted without its state", func() {
			s.output("sh", "-c", "rm -rf /run/systemd/resolve/netif/*")
			s.restartResolved()
		}},
		{"settings reverted and the link changed", func() {
			s.resolvectl("revert", "ironvip0")
			s.down("ironvip0")
		}},
		{"ironvip0 recreated", func() {
			s.removeDevice()
		}},
	} {
		fault.do()
		s.check("ok", "")
		wait.For(t, fault.name+": the name is found", func() error {
			r, err := s.ask(stub, "web.prod.svc."+zone, dns.TypeA)
			if err == nil && len(data(r)) == 0 {
				err = fmt.Errorf("the answer is %v; resolvectl: %s", r, s.resolvectl("status", "ironvip0"))
			}
			return err
		})
		others()
	}

	stop := func() {
		t.Helper()
		must.Succeed(t, s.agent.Stop())
	}
	reload := func() {
		t.Helper()
		must.Succeed(t, syscall.Kill(s.agent.Pid(), syscall.SIGHUP))
	}
	kept := func(when string) {
		t.Helper()
		expect.Contains(t, s.resolvectl("domain", "ironvip0"), "~"+zone, "domains of the link %s", when)
	}
	set := func(when string) {
		t.Helper()
		wait.For(t, "the domain is set "+when, func() error {
			if got := s.resolvectl("domain", "ironvip0"); !strings.Contains(got, "~"+zone) {
				return fmt.Errorf("domains of the link: %s", got)
			}
			return nil
		})
		s.await(stub, "shop.default.svc."+zone, dns.TypeA) // the servers are set last
	}
	reverted := func(when string) {
		t.Helper()
		wait.For(t, "the domain is reverted "+when, func() error {
			if got := s.resolvectl("domain", "ironvip0"); !strings.Contains(got, "ironvip0") || strings.Contains(got, zone) {
				return fmt.Errorf("domains of the link: %s", got)
			}
			return nil
		})
		others()
	}
	stop()
	kept("after the agent's end")
	if r, err := s.ask(stub, "shop."+zone, dns.TypeTXT); err == nil && r.Rcode != dns.RcodeServerFailure { // not in the cache
		t.Errorf("without an agent, the answer is %v", r)
	}
	s.runAgent(`resolver = "resolved"`)
	s.check("ok", "")
	lookups(t, s.host, stub)

	s.configure(`resolver = "none"`)
	reload()
	reverted("by a reload")
	s.configure(`resolver = "resolved"`)
	reload()
	set("by a reload")
	stop()
	kept("after another end")
	s.runAgent(`resolver = "none"`)
	reverted("at a start")

	stop()
	s.runAgent(`resolver = "resolved"`)
	set("at a start")
	stop()
	expect.Contains(t, s.output(s.file("ironvip"), "dataplane", "clean", "--config", s.dir), "systemd-resolved", "dataplane clean")
	reverted("by dataplane clean")
}

// Without a polkit rule the agent says so, and does everything else.
func TestResolvedWithoutRule(t *testing.T) {
	t.Parallel()
	s := newSystem(t, false)
	s.startAgent()
	s.check("warn", "no polkit rule")
}

// Without systemd-resolved the agent says so until it starts.
func TestResolvedAway(t *testing.T) {
	t.Parallel()
	s := newSystem(t, true)
	must.Succeed(t, s.resolved.Stop())
	s.startAgent()
	s.check("warn", "systemd-resolved is not running")
	must.Succeed(t, s.resolved.Start())
	s.check("ok", "")
	s.await(stub, "web.prod.svc."+zone, dns.TypeA)
}

func (s *system) restartResolved() {
	s.t.Helper()
	must.Succeed(s.t, s.resolved.Stop())
	must.Succeed(s.t, s.resolved.Start())
}

// down sets a link down and up.
func (s *system) down(name string) {
	s.t.Helper()
	link, err := s.Netlink.LinkByName(name)
	if err == nil {
		err = s.Netlink.LinkSetDown(link)
	}
	if err == nil {
		err = s.Netlink.LinkSetUp(link)
	}
	must.Succeed(s.t, err)
}

// check waits until the line of ironvip status on DNS has a level and a text.
func (s *system) check(level, message string) {
	s.t.Helper()
	wait.For(s.t, fmt.Sprintf("status of dns is %s %s", level, message), func() error {
		answer, err := s.client.Get("http://agent/v1/status")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var status v1.NodeStatus
		if err := json.NewDecoder(answer.Body).Decode(&status); err != nil {
			return err
		}
		i := slices.IndexFunc(status.Checks, func(c v1.Check) bool { return c.Name == "dns" })
		if i < 0 || status.Checks[i].Level != level || !strings.Contains(status.Checks[i].Message, message) {
			return fmt.Errorf("the status is %+v", status.Checks)
		}
		return nil
	})
}
