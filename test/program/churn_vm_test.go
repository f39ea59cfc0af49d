//go:build vm

package program

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

const (
	churnServers = 8 // behind each service

	// The pace leaves time on the emulated machine's only processor for the changes.
	churnLongPace  = 4 * time.Millisecond
	churnShortPace = 20 * time.Millisecond
)

// farm is one service of the churn, with its servers on the lab's backends.
type farm struct {
	name     string
	drain    string
	vip      netip.AddrPort
	backends []string // as JSON, without weight

	mu   sync.Mutex
	left map[string]bool // servers that were ever removed

	scheduler   string
	rescheduled atomic.Int64 // odd while the scheduler changes, for a moment of which IPVS has none and refuses connections
}

// newFarm starts a farm's servers. Each sends its name to a client that connects, and then echoes
// lines.
func newFarm(t *testing.T, lab *netlab.Lab, name, drain string) *farm {
	f := &farm{name: name, drain: drain, left: map[string]bool{}}
	for i := range churnServers {
		node := lab.Backends[i%len(lab.Backends)]
		l := node.Listen(netip.AddrPortFrom(node.Addr4, 0))
		at := l.Addr().(*net.TCPAddr)
		f.backends = append(f.backends, fmt.Sprintf(`"address": %q, "port": %d`, at.IP, at.Port))
		me := fmt.Sprintf("%s-%d", name, i)
		accept.Each(l, func(c net.Conn) {
			fmt.Fprintln(c, me)
			for r := bufio.NewScanner(c); r.Scan(); {
				fmt.Fprintln(c, r.Text())
			}
		})
	}
	return f
}

// put registers the farm with its present servers, and waits until the kernel has it.
func (f *farm) put(h *host, scheduler string, weights [churnServers]int) {
	var in []string
	f.mu.Lock()
	for i, w := range weights {
		if w < 0 {
			f.left[fmt.Sprintf("%s-%d", f.name, i)] = true
		} else {
			in = append(in, fmt.Sprintf(`{%s, "weight": %d}`, f.backends[i], w))
		}
	}
	f.mu.Unlock()
	if scheduler != f.scheduler {
		f.scheduler = scheduler
		f.rescheduled.Add(1)
		defer f.rescheduled.Add(1)
	}
	body := fmt.Sprintf(`{"ports": [{"port": 80}], "scheduler": %q, "drain_timeout": %q, "backends": [%s]}`, scheduler, f.drain, strings.Join(in, ","))
	code, tree := h.rest("PUT", "/v1/services/default/"+f.name, body, "Prefer", "wait=300")
	if code/100 != 2 { // 502 and 504 mean that the kernel doesn't have it
		h.t.Fatalf("PUT %s: %d %v", f.name, code, tree)
	}
	status := tree["status"].(map[string]any)
	f.vip = netip.AddrPortFrom(netip.MustParseAddr(status["vips"].([]any)[0].(string)), 80)
}

// change is one random change: removed and added servers, weights, schedulers. The first server
// always takes connections.
func (f *farm) change(h *host, r *rand.Rand) {
	var weights [churnServers]int
	for i := range weights {
		weights[i] = r.IntN(6) - 2 // -2 and -1: removed; 0: present without new connections
	}
	weights[0] = 1 + r.IntN(3)
	f.put(h, []string{"rr", "wrr", "lc", "wlc", "mh"}[r.IntN(5)], weights)
}

// session is a connection that must stay open.
type session struct {
	farm   *farm
	server string // the server that answered first
	c      net.Conn
	r      *bufio.Reader
	n      int
}

// open connects to a farm and reads the server's name, which must be one of the farm's.
func (f *farm) open(node *netlab.Node) (*session, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Timeout)
	defer cancel()
	c, err := node.DialContext(ctx, "tcp", f.vip.String())
	if err != nil {
		return nil, err
	}
	s := &session{farm: f, c: c, r: bufio.NewReader(c)}
	c.SetDeadline(time.Now().Add(wait.Timeout))
	line, err := s.r.ReadString('\n')
	if err != nil {
		c.Close()
		return nil, err
	}
	s.server = strings.TrimSpace(line)
	if !strings.HasPrefix(s.server, f.name+"-") {
		c.Close()
		return nil, fmt.Errorf("misdirected: %s was answered by %s", f.name, s.server)
	}
	return s, nil
}

// lives exchanges one line.
func (s *session) lives() error {
	s.n++
	s.c.SetDeadline(time.Now().Add(wait.Timeout))
	if _, err := fmt.Fprintf(s.c, "%d\n", s.n); err != nil {
		return err
	}
	line, err := s.r.ReadString('\n')
	if err == nil && line != fmt.Sprintf("%d\n", s.n) {
		err = fmt.Errorf("line %d is answered by %q", s.n, line)
	}
	return err
}

// TestLongChurn is this at length.
//
// Slow: two agents start in the emulated machine.
func TestChurn(t *testing.T) { churn(t, rand.New(rand.NewPCG(1, 2)), 12, 24, 1) }

// churn has open connections and a steady stream of short ones, while services are changed, and the agent
// is killed or stopped and started. No reset, timeout or misdirected connection may occur, except to servers
// that were removed until after their deadline.
func churn(t *testing.T, r *rand.Rand, open, changes, restarts int) {
	h, lab := newLab(t)
	h.start()
	patient := newFarm(t, lab, "patient", "1h") // its deadline is after the test
	hasty := newFarm(t, lab, "hasty", "1s")     // its removed servers may end their connections
	farms := []*farm{patient, hasty}
	for _, f := range farms {
		f.put(h, "wrr", [churnServers]int{1, 1, 1, 1, 1, 1, 1, 1})
	}

	var wrong failures
	var sessions []*session
	for i := range open {
		s, err := farms[i%2].open(lab.Client)
		must.Succeed(t, err, "connection %d", i)
		defer s.c.Close()
		sessions = append(sessions, s)
	}

	stop := make(chan struct{})
	var traffic sync.WaitGroup
	exchanges, short := 0, 0
	traffic.Go(func() { // the long-lived ones, in turn, during the changes
		for {
			kept := sessions[:0]
			for _, s := range sessions {
				time.Sleep(churnLongPace)
				err := s.lives()
				exchanges++
				s.farm.mu.Lock()
				excused := s.farm == hasty && s.farm.left[s.server]
				s.farm.mu.Unlock()
				switch {
				case err == nil:
					kept = append(kept, s)
				case !excused:
					wrong.add("the connection to %s after %d lines: %v", s.server, s.n, err)
				}
			}
			sessions = kept
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	traffic.Go(func() { // the short ones
		for {
			for _, f := range farms {
				time.Sleep(churnShortPace)
				short++
				rescheduled := f.rescheduled.Load()
				s, err := f.open(lab.Client)
				if err == nil {
					err = s.lives()
					s.c.Close()
				}
				if errors.Is(err, syscall.ECONNRESET) && f == hasty {
					continue // it was open for longer than its server's deadline
				}
				if errors.Is(err, syscall.ECONNREFUSED) && (rescheduled%2 == 1 || f.rescheduled.Load() != rescheduled) {
					continue
				}
				if err != nil {
					wrong.add("short connection %d, to %s: %v", short, f.name, err)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})

	for i := range changes {
		if i%(changes/restarts) == changes/restarts/2 {
			if r.IntN(2) == 0 {
				h.kill()
			} else {
				h.stop()
			}
			h.start()
		}
		farms[r.IntN(2)].change(h, r)
		if i%10 == 0 { // and neighbors that are added and removed
			path := fmt.Sprintf("/v1/services/default/guest%d", i%50)
			h.rest("PUT", path, fmt.Sprintf(`{"ports": [{"port": 80}], "backends": [{%s}]}`, patient.backends[0]))
			if code, tree := h.rest("DELETE", path, ""); code/100 != 2 && code != http.StatusNotFound {
				t.Errorf("DELETE %s: %d %v", path, code, tree)
			}
		}
		if wrong.count() > 10 {
			break
		}
	}
	close(stop)
	traffic.Wait()
	wrong.report(t)
	alive := map[string]int{}
	for _, s := range sessions {
		alive[s.farm.name]++
	}
	if alive["patient"] != open/2 {
		t.Errorf("%d of %d connections of the patient service live on", alive["patient"], open/2)
	}
	t.Logf("%d changes, %d restarts; %d lines on %d long-lived connections (%v left), %d short connections",
		changes, restarts, exchanges, open, alive, short)
}

// failures collects the errors of several goroutines.
type failures struct {
	mu  sync.Mutex
	all []error
}

func (f *failures) add(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fmt.Errorf(format, args...))
}

func (f *failures) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

func (f *failures) report(t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.all) > 0 {
		t.Errorf("%d failures, the first: %v", len(f.all), errors.Join(f.all[:min(10, len(f.all))]...))
	}
}
