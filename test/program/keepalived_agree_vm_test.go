//go:build vm

package program

import (
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/keepalived"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Generated configurations become the services that keepalived makes of them.
func TestImportAgreesWithKeepalived(t *testing.T) {
	agrees(t, 1, 4)
}

// agrees compares configurations of one seed.
func agrees(t *testing.T, seed uint64, n int) {
	lab := netlab.New(t)
	c := &configurations{Rand: rand.New(rand.NewPCG(seed, 0)), t: t, dir: t.TempDir()}
	for range n {
		path := c.write()
		want, complaints, log := dumpOf(t, lab.Director, path)
		result := must.Get(keepalived.Convert(path))(t)
		got := map[string]string{}
		for _, s := range result.Services {
			k, text := described(&s)
			got[k] = text
		}
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if got[k] != want[k] {
				t.Errorf("seed %d: %s\n got %s\nwant %s", seed, k, got[k], want[k])
			}
			delete(got, k)
		}
		for k, text := range got {
			t.Errorf("seed %d: keepalived has no %s %s", seed, k, text)
		}
		if result.Refused > 0 {
			t.Errorf("seed %d: the result is refused", seed)
		}
		for _, at := range complaints {
			if !slices.ContainsFunc(result.Notes, func(n migrate.Note) bool { return filepath.Base(n.File) == filepath.Base(at.File) && n.Line == at.Line }) {
				t.Errorf("seed %d: no note about %s, of which keepalived says %s", seed, at.Place, at.Text)
			}
		}
		if t.Failed() {
			for _, l := range log {
				t.Log(l)
			}
			for _, f := range must.Get(filepath.Glob(c.dir + "/*"))(t) {
				t.Logf("%s:\n%s", f, must.Get(os.ReadFile(f))(t))
			}
			for _, n := range result.Notes {
				t.Log(n)
			}
			t.FailNow()
		}
	}
}

// described returns the address of a service, and its settings in the words of dumpOf.
func described(s *migrate.Service) (key, text string) {
	on := s.Ports[0]
	protocol := on.Protocol
	if protocol == "" {
		protocol = "tcp"
	}
	key = fmt.Sprintf("%s %s/%s", s.VIPs[0], on.Port, protocol)
	text = s.Scheduler
	if s.Affinity != nil {
		text += fmt.Sprintf(" affinity %v", time.Duration(*s.Affinity.Timeout).Seconds())
	}
	forward := map[string]string{"": "NAT", vip.ForwardDirect.String(): "DR", vip.ForwardTunnel.String(): "TUN"}[s.Forward]
	text += " " + forward
	first := 0 // the port of the first backend
	for i, b := range s.Backends {
		to := int(b.Port)
		if to == 0 {
			to = int(on.TargetPort)
		}
		if to == 0 {
			to = on.Port.First
		}
		if i == 0 {
			first = to
		}
		if forward != "NAT" {
			to, first = 0, on.Port.First
		}
		weight := 1
		if b.Weight != nil {
			weight = *b.Weight
		}
		if b.Backup {
			text += fmt.Sprintf(" | sorry %s:%d", b.Address, to)
			continue
		}
		text += fmt.Sprintf(" | %s:%d*%d<%d", b.Address, to, weight, b.MaxConnections)
	}
	h := s.Health
	if h == nil || h.Type == "none" || len(s.Backends) == 0 {
		return key, text
	}
	kind := map[string]string{"tcp": "TCP_CHECK", "http": "HTTP_GET", "https": "SSL_GET"}[h.Type]
	if h.Expect == "220" {
		kind = "SMTP_CHECK"
	}
	text += fmt.Sprintf(" | %s every %v for %v retries %d", kind, time.Duration(*h.Interval).Seconds(), time.Duration(*h.Timeout).Seconds(), *h.Fall-1)
	if *h.Fall > 1 {
		text += fmt.Sprintf(" after %v", time.Duration(*h.FastInterval).Seconds())
	}
	port := int(h.Port)
	if port == 0 {
		port = first
	}
	return key, fmt.Sprintf("%s port %d %s %s", text, port, h.Path, h.Status)
}

var (
	logLine   = regexp.MustCompile(`^\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}: (.*)$`)
	complaint = regexp.MustCompile(`^\(([^ ()]+): Line (\d+)\) (.*)$`)
)

// dumpOf returns what keepalived reads in a configuration, by address, and the lines that it refuses.
func dumpOf(t *testing.T, n *netlab.Node, conf string) (services map[string]string, complaints []migrate.Note, log []string) {
	t.Helper()
	cmd := exec.Command("keepalived", "--dont-fork", "--check", "--log-console", "--dump-conf", "--use-file", conf,
		"--pid", conf+".main", "--checkers_pid", conf+".checkers")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out := must.Get(cmd.StderrPipe())(t)
	cmd.Stdout = cmd.Stderr
	n.Do(func() { must.Succeed(t, cmd.Start()) })
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		n.Run("ipvsadm", "-C")
	}()
	timer := time.AfterFunc(wait.Timeout, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer timer.Stop()
	var lines []string
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		m := logLine.FindStringSubmatch(scanner.Text())
		if m == nil {
			continue
		}
		if isEnd.MatchString(m[1]) {
			break
		}
		if bad := complaint.FindStringSubmatch(m[1]); bad != nil {
			number, _ := strconv.Atoi(bad[2])
			complaints = append(complaints, migrate.Note{Place: migrate.Place{File: bad[1], Line: number}, Text: bad[3]})
		}
		lines = append(lines, m[1])
	}
	return servicesOf(lines), complaints, slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, " ") })
}

// isEnd matches the lines of keepalived's log that follow its data.
var isEnd = regexp.MustCompile("^(Activating|Deactivating|Stopped)")

// server is a virtual server of keepalived's data.
type server struct {
	at                                []string // "10.0.0.1 80"
	name, protocol, settings, forward string
	reals, sorry, first               string // first is the first real server, as the data of checks have it
}

// real adds a server, with the port 0 where it is that of the virtual server.
func (s *server) real(name, addr, port string) string {
	if s.forward != "NAT" || port == "0" {
		port = "0"
		if s.forward == "NAT" {
			_, port, _ = strings.Cut(s.at[0], " ")
		}
	}
	return fmt.Sprintf(" | %s%s:%s", name, addr, port)
}

// servicesOf returns the services of keepalived's data by address, in the words of described.
func servicesOf(lines []string) map[string]string {
	groups, inGroup := map[string][]string{}, ""
	var all []*server
	checks, checked := map[string]map[string]string{}, map[string]string(nil) // by "VIRTUAL -> REAL", the first of each
	var s *server
	for _, line := range lines {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, " = ")
		switch addr, port, _ := strings.Cut(value, ", VPORT = "); {
		case key == "Virtual Server Group":
			inGroup, _, _ = strings.Cut(value, ",")
		case inGroup != "" && strings.HasPrefix(key, "VIP"):
			from, to, isRange := strings.Cut(addr, "-")
			if !isRange {
				to = from
			}
			for _, a := range migrate.Range(netip.MustParseAddr(from), netip.MustParseAddr(to), 100) {
				groups[inGroup] = append(groups[inGroup], a.String()+" "+port)
			}
		case key == "VS VIP":
			s, inGroup = &server{at: []string{addr + " " + port}, name: fmt.Sprintf("[%s]:%%s:%s", addr, port)}, ""
			all = append(all, s)
		case key == "VS GROUP":
			s, inGroup = &server{at: groups[strings.TrimSuffix(strings.TrimPrefix(value, "["), "]:0")], name: value}, ""
			all = append(all, s)
		case strings.Contains(line, "]:") && strings.Contains(line, " -> ["):
			if s = nil; checks[line] == nil {
				checks[line] = map[string]string{}
			}
			checked = checks[line]
		case s == nil && checked != nil:
			if isStatus.MatchString(line) {
				key, value = "status", line
			}
			if _, known := checked[key]; !known {
				checked[key] = value
			}
		case s == nil:
		case key == "lvs_sched":
			s.settings = value
		case key == "persistence timeout":
			s.settings += " affinity " + value
		case key == "protocol":
			s.protocol = strings.ToLower(value)
		case key == "default forwarding method":
			s.forward, _, _ = strings.Cut(value, ",")
		case key == "sorry server":
			at := strings.Split(strings.TrimPrefix(value, "["), "]:")
			_, port, _ := strings.Cut(at[1], ":")
			s.sorry = s.real("sorry ", at[0], port)
		case key == "RIP":
			addr, rest, _ := strings.Cut(value, ", RPORT = ")
			port, weight, _ := strings.Cut(rest, ", WEIGHT = ")
			weight, _, _ = strings.Cut(weight, " ")
			if s.reals == "" {
				s.first = fmt.Sprintf("[%s]:%s:%s", addr, s.protocol, port)
			}
			s.reals += s.real("", addr, port) + "*" + weight
		case key == "connection limit range":
			_, upper, _ := strings.Cut(value, " -> ")
			s.reals += "<" + upper
		}
	}
	out := map[string]string{}
	for _, s := range all {
		name := s.name
		if strings.Contains(name, "%s") {
			name = fmt.Sprintf(name, s.protocol)
		}
		text := s.settings + " " + s.forward + s.reals + s.sorry + checkOf(checks[name+" -> "+s.first])
		for _, at := range s.at {
			out[at+"/"+s.protocol] = text
		}
	}
	return out
}

// isStatus matches a line of keepalived's data with the status of a check.
var isStatus = regexp.MustCompile(`^\d{3}(-\d{3})?$`)

// checkOf returns a check of keepalived's data in the words of described.
func checkOf(c map[string]string) string {
	if c == nil {
		return ""
	}
	kind, _, _ := strings.Cut(c["Keepalive method"], ",")
	every := func(key string) time.Duration {
		d, _ := time.ParseDuration(strings.ReplaceAll(c[key], " ", ""))
		return d
	}
	timeout, _ := strconv.ParseFloat(c["Timeout"], 64)
	text := fmt.Sprintf(" | %s every %v for %v retries %s", kind, every("Delay loop").Seconds(), timeout, c["Retries"])
	if c["Retries"] != "0" {
		text += fmt.Sprintf(" after %v", max(min(every("Delay before retry"), every("Delay loop")), vip.MinCheckInterval).Seconds())
	}
	_, port, _ := strings.Cut(c["Dest"], "]:")
	return text + " port " + port + " " + c["Checked url"] + " " + c["status"]
}
