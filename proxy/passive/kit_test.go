package passive

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// sketch is a Table with frontends.
type sketch struct {
	*Table
	fronts []*front
	rows   *table.Table[vip.PassiveKey, vip.PassiveHealth]
	events *event.Log
}

// front is a frontend with members by name, one letter.
type front struct {
	Frontend
	service vip.ServiceKey
	shared  *Service
	members map[string]*Member
}

var refusedErr = &net.OpError{Op: "dial", Err: unix.ECONNREFUSED}

// inSketch runs a test on fake time, with frontends of service web that have these backends.
func inSketch(t *testing.T, test func(t *testing.T, s *sketch), frontends ...string) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &sketch{Table: New(func() int64 { return int64(time.Since(began)) }), events: event.NewLog(100, time.Now),
			rows: table.New(&table.Clock{}, vip.KeyOfPassiveHealth, func(a, b vip.PassiveHealth) bool { return a == b })}
		go s.Run(t.Context(), Sink{Rows: s.rows, Event: s.events.Add, Log: slog.New(slog.DiscardHandler)})
		synctest.Wait() // Run waits for news
		for _, names := range frontends {
			s.fronts = append(s.fronts, s.add("web", names))
		}
		test(t, s)
	})
}

func (s *sketch) add(service, names string) *front {
	f := &front{service: vip.ServiceKey{Namespace: "default", Name: service}, shared: NewService(func() {}), members: map[string]*Member{}}
	s.choose(f, names)
	return f
}

func (f *front) key(name string) vip.PassiveKey {
	return vip.PassiveKey{Service: f.service, Protocol: vip.TCP, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, name[0]}), 80)}
}

// choose gives a frontend other backends. A name in capitals is that of a backend without a weight.
func (s *sketch) choose(f *front, names string) {
	var usable []*Member
	for _, name := range strings.Split(names, "") {
		name, weight := strings.ToLower(name), name == strings.ToLower(name)
		if f.members[name] == nil {
			f.members[name] = &Member{}
			s.Join(f.members[name], f.key(name), &f.Frontend, f.shared)
		}
		if weight {
			usable = append(usable, f.members[name])
		}
	}
	s.Use(&f.Frontend, usable)
	for name, m := range f.members {
		if !strings.Contains(strings.ToLower(names), name) {
			m.Leave()
			delete(f.members, name)
		}
	}
}

// of returns a backend of the first frontend.
func (s *sketch) of(name string) *Member { return s.fronts[0].members[name] }

// ejected lists the ejected backends of all frontends.
func (s *sketch) ejected() (out string) {
	synctest.Wait() // what is due now has happened
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range strings.Split("abcdef", "") {
		if x := s.backends[s.fronts[0].key(name)]; x != nil && x.ejected {
			out += name
		}
	}
	return out
}

func (s *sketch) expect(t *testing.T, want string) {
	t.Helper()
	expect.Equal(t, s.ejected(), want, "ejected")
}

// kinds returns the kinds of all events so far, and the messages.
func (s *sketch) kinds() (kinds, messages []string) {
	list, _ := s.events.Since(0)
	for _, e := range list {
		kinds, messages = append(kinds, e.Kind), append(messages, e.Service+" "+e.Object+" "+e.Message)
	}
	return kinds, messages
}
