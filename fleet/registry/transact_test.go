package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

// memory is a Store of ints that can simulate other writers.
type memory struct {
	Store[int]
	values     map[string]Item[int]
	last       uint64
	commits    int
	before     func(commit int) // runs before each commit
	fetch      func(key string) error
	unreadable map[string]bool
	err        error // error of commits from errAt on
	errAt      int
}

func newMemory() *memory {
	return &memory{values: map[string]Item[int]{}, before: func(int) {}, fetch: func(string) error { return nil }, unreadable: map[string]bool{}}
}

func (m *memory) set(key string, value int) {
	m.last++
	m.values[key] = Item[int]{Key: key, Value: value, Version: m.last}
}

func (m *memory) Version(key string) uint64                 { return m.values[key].Version }
func (m *memory) Get(key string) Item[int]                  { return m.values[key] }
func (m *memory) Unreadable(key string) bool                { return m.unreadable[key] }
func (m *memory) Fetch(_ context.Context, key string) error { return m.fetch(key) }
func (m *memory) Commit(_ context.Context, batches []*Batch[int]) error {
	m.commits++
	m.before(m.commits)
	if m.err != nil && m.commits >= m.errAt {
		return &StoreError{Err: m.err}
	}
	for _, b := range batches {
		var outdated []string
		for _, e := range b.Edits {
			if m.unreadable[e.Key] || m.values[e.Key].Version != e.Version {
				outdated = append(outdated, e.Key)
			}
			if e.Value != nil && *e.Value > 1000 {
				b.Err = fmt.Errorf("%w: %d", ErrTooLarge, *e.Value)
			}
		}
		if len(outdated) > 0 {
			b.Err = &OutdatedError{outdated}
		}
		if b.Err != nil {
			continue
		}
		for i, e := range b.Edits {
			if e.Value == nil {
				delete(m.values, e.Key)
				continue
			}
			m.set(e.Key, *e.Value)
			b.Edits[i].Written = m.last
		}
	}
	return nil
}

// add returns an op that adds n to the value at key. It refuses a negative result.
func (m *memory) add(key string, n int) *Op[int] {
	return &Op[int]{Key: key, Apply: func(bool) (*Edit[int], error) {
		now := m.Get(key)
		if now.Value += n; now.Value < 0 {
			return nil, errNegative
		}
		return &Edit[int]{Key: key, Version: now.Version, Value: &now.Value}, nil
	}}
}

var errNegative = errors.New("negative")

func TestTransact(t *testing.T) {
	key := func(name string) vip.ServiceKey { return vip.ServiceKey{Namespace: "default", Name: name} }
	for name, c := range map[string]struct {
		prepare func(m *memory)
		add     map[string]int // added to a=1, b=2
		atomic  bool
		want    map[string]int
		errs    map[string]error
		err     error
		unknown bool
		commits int
	}{
		"one":                          {add: map[string]int{"a": 5}, want: map[string]int{"a": 6, "b": 2}, commits: 1},
		"several are one commit":       {add: map[string]int{"a": 5, "b": 5, "c": 5}, want: map[string]int{"a": 6, "b": 7, "c": 5}, commits: 1},
		"one refused, others written":  {add: map[string]int{"a": -5, "b": 5}, want: map[string]int{"a": 1, "b": 7}, errs: map[string]error{"a": errNegative}, commits: 1},
		"one refused, atomic":          {add: map[string]int{"a": -5, "b": 5}, atomic: true, want: map[string]int{"a": 1, "b": 2}, errs: map[string]error{"a": errNegative}},
		"all refused of an atomic one": {add: map[string]int{"a": -5, "b": -5}, atomic: true, want: map[string]int{"a": 1, "b": 2}, errs: map[string]error{"a": errNegative, "b": errNegative}},
		"applied again after a conflict": {prepare: func(m *memory) {
			m.before = func(n int) {
				if n == 1 {
					m.set("default/a", 100)
				}
			}
		}, add: map[string]int{"a": 5, "b": 5}, want: map[string]int{"a": 105, "b": 7}, commits: 2},
		"atomic, applied again after a conflict": {prepare: func(m *memory) {
			m.before = func(n int) {
				if n == 1 {
					m.set("default/a", 100)
				}
			}
		}, add: map[string]int{"a": 5, "b": 5}, atomic: true, want: map[string]int{"a": 105, "b": 7}, commits: 2},
		"conflicts every time": {prepare: func(m *memory) { m.before = func(n int) { m.set("default/a", n) } }, add: map[string]int{"a": 500},
			want: map[string]int{"a": maxAttempts + 1, "b": 2}, errs: map[string]error{"a": &ConflictError{Service: key("a")}}, commits: maxAttempts + 1},
		"unreadable": {prepare: func(m *memory) { m.unreadable["default/a"] = true }, add: map[string]int{"a": 5, "b": 5},
			want: map[string]int{"a": 1, "b": 7}, errs: map[string]error{"a": &ConflictError{Service: key("a"), Unreadable: true}}, commits: 1},
		"unreadable, atomic": {prepare: func(m *memory) { m.unreadable["default/a"] = true }, add: map[string]int{"a": 5, "b": 5}, atomic: true,
			want: map[string]int{"a": 1, "b": 2}, errs: map[string]error{"a": &ConflictError{Service: key("a"), Unreadable: true}}, commits: 1},
		"too large":  {add: map[string]int{"a": 5, "b": 5000}, want: map[string]int{"a": 6, "b": 2}, errs: map[string]error{"b": ErrTooLarge}, commits: 1},
		"store away": {prepare: func(m *memory) { m.err = errors.New("away") }, add: map[string]int{"a": 5}, want: map[string]int{"a": 1, "b": 2}, err: ErrStore, commits: 1},
		"store away after a conflict": {prepare: func(m *memory) {
			m.err, m.errAt = errors.New("away"), 2
			m.before = func(n int) {
				if n == 1 {
					m.set("default/a", 100)
				}
			}
		}, add: map[string]int{"a": 5}, want: map[string]int{"a": 100, "b": 2}, err: ErrStore, commits: 2},
		"store away after a part is written": {prepare: func(m *memory) {
			m.err, m.errAt = errors.New("away"), 2
			m.before = func(n int) {
				if n == 1 {
					m.set("default/a", 100)
				}
			}
		}, add: map[string]int{"a": 5, "b": 5}, want: map[string]int{"a": 100, "b": 7}, err: ErrStore, unknown: true, commits: 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := newMemory()
				m.set("default/a", 1)
				m.set("default/b", 2)
				if c.prepare != nil {
					c.prepare(m)
				}
				var ops []*Op[int]
				for _, name := range slices.Sorted(maps.Keys(c.add)) {
					ops = append(ops, m.add("default/"+name, c.add[name]))
				}
				written := map[string]bool{}
				err := Transact(t.Context(), m, ops, c.atomic, func(done []int) {
					for _, i := range done {
						written[ServiceOf(ops[i].Key).Name] = true
						if version := m.Version(ops[i].Key); ops[i].Edit.Written != version {
							t.Errorf("%s: written as %d, not %d", ops[i].Key, ops[i].Edit.Written, version)
						}
					}
				})
				var store *StoreError
				if !errors.Is(err, c.err) || errors.As(err, &store) && store.Unknown != c.unknown {
					t.Errorf("error %v, want %v", err, c.err)
				}
				got := map[string]int{}
				for at, item := range m.values {
					got[ServiceOf(at).Name] = item.Value
				}
				if !maps.Equal(got, c.want) || m.commits != c.commits {
					t.Errorf("values %v after %d commits, want %v after %d", got, m.commits, c.want, c.commits)
				}
				for _, op := range ops {
					name := ServiceOf(op.Key).Name
					var conflict, wanted *ConflictError
					switch want := c.errs[name]; {
					case errors.As(want, &wanted):
						if !errors.As(op.Err, &conflict) || *conflict != *wanted {
							t.Errorf("%s: %v, want %v", name, op.Err, want)
						}
					case !errors.Is(op.Err, want):
						t.Errorf("%s: %v, want %v", name, op.Err, want)
					}
					if done := op.Err == nil && err == nil && len(c.errs) == 0; done && !written[name] {
						t.Errorf("%s was written and not announced", name)
					}
				}
			})
		})
	}
}

// An op that would write nothing depends on the value in the store, not on the value that this host
// knows.
func TestTransactConfirms(t *testing.T) {
	unlessKnown := func(m *memory) *Op[int] {
		return &Op[int]{Key: "default/a", Apply: func(confirmed bool) (*Edit[int], error) {
			now := m.Get("default/a")
			switch {
			case now.Version == 0 && !confirmed:
				return nil, ErrConfirm
			case now.Version == 0:
				return nil, ErrNoService
			}
			now.Value++
			return &Edit[int]{Key: "default/a", Version: now.Version, Value: &now.Value}, nil
		}}
	}
	away := &StoreError{Err: errors.New("away")}
	for name, c := range map[string]struct {
		fetch func(m *memory) error
		want  error
	}{
		"another host has written it": {func(m *memory) error { m.set("default/a", 1); return nil }, nil},
		"nobody has":                  {func(*memory) error { return nil }, ErrNoService},
		"the store is away":           {func(*memory) error { return away }, ErrStore},
	} {
		m := newMemory()
		fetched := 0
		m.fetch = func(string) error { fetched++; return c.fetch(m) }
		op := unlessKnown(m)
		if err := Transact(t.Context(), m, []*Op[int]{op}, false, func([]int) {}); err != nil || !errors.Is(op.Err, c.want) || fetched != 1 {
			t.Errorf("%s: %v, %v, fetched %d times", name, err, op.Err, fetched)
		}
	}
}

func TestTransactEndsWithItsContext(t *testing.T) {
	m := newMemory()
	ctx, cancel := context.WithCancel(t.Context())
	m.before = func(n int) {
		m.set("default/a", n)
		if n == 5 {
			cancel()
		}
	}
	op := m.add("default/a", 1)
	if err := Transact(ctx, m, []*Op[int]{op}, false, func([]int) {}); err != nil || !errors.Is(op.Err, context.Canceled) {
		t.Errorf("%v, %v", err, op.Err)
	}
}
