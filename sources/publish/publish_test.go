package publish

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// script is a source with one round at a time, and the sink that records what is published.
type script struct {
	sync.Mutex
	round Round
	calls []string
	revs  []uint64
}

func (s *script) call(format string, args ...any) {
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

func (s *script) Replace([]vip.Service, []vip.Problem) { s.call("replace") }
func (s *script) Put(services ...vip.Service) []uint64 {
	s.call("put %d", len(services))
	return s.revs
}
func (s *script) Delete(keys ...vip.ServiceKey) { s.call("delete %d", len(keys)) }
func (s *script) Problems([]vip.Problem)        { s.call("problems") }
func (s *script) Stale(err error)               { s.call("stale %s", err) }
func (s *script) Fresh()                        { s.call("fresh") }

func TestRoundsArePublishedInOrder(t *testing.T) {
	put, gone, lost := make([]vip.Service, 1), make([]vip.ServiceKey, 2), errors.New("lost")
	s := &script{revs: []uint64{7}}
	p := New(func() Round { return s.round }, s, s, 0)
	for _, step := range []struct {
		what  string
		round Round
		want  string
		sent  bool
	}{
		{"nothing before the full list", Round{Put: put, Gone: gone, Reworded: true, Answered: true}, "", false},
		{"why there is none", Round{Err: lost}, "stale lost", false},
		{"the same reason", Round{Err: lost}, "", false},
		{"the full list", Round{Full: true}, "replace", true},
		{"a change", Round{Put: put}, "put 1", true},
		{"no change", Round{Put: put}, "put 1", false},
		{"a removal", Round{Gone: gone}, "delete 2", true},
		{"problems", Round{Reworded: true}, "problems", false},
		{"an answer", Round{Answered: true}, "fresh", false},
		{"a loss, and no removal", Round{Gone: gone, Incomplete: true, Err: lost}, "stale lost", false},
		{"read in part", Round{Incomplete: true}, "", false},
		{"all is read", Round{Full: true}, "replace", true},
		{"nothing", Round{}, "", false},
	} {
		s.round, s.calls = step.round, nil
		if _, sent := p.Publish(); strings.Join(s.calls, "; ") != step.want || sent != step.sent {
			t.Errorf("%s: %q, changed %v, want %q, %v", step.what, s.calls, sent, step.want, step.sent)
		}
	}
	if s.round = (Round{Err: lost}); p.Fresh() != true {
		t.Error("not fresh after the full list")
	}
	if p.Publish(); p.Fresh() {
		t.Error("fresh while the server can't be read")
	}
}

// A service that is not in effect has no revision, and counts as changed.
func TestALostClaimCountsAsAChange(t *testing.T) {
	p := &Publisher{newest: 5}
	for _, c := range []struct {
		revs []uint64
		want bool
	}{{[]uint64{0}, true}, {[]uint64{3, 5}, false}, {[]uint64{3, 6}, true}, {[]uint64{6}, false}} {
		expect.Equal(t, p.changed(slices.Clone(c.revs)), c.want, "%v", c.revs)
	}
}
