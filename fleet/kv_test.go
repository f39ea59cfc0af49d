package fleet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/consulkv"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

func TestMemoryIsAKV(t *testing.T) { kvContract(t, fleettest.NewMemory().Client("one"), true) }

// kvContract is the behavior that a Tree requires from a KV store. It is tested for the store in
// memory, for Consul and for etcd. Keeps says that a value that is written again keeps its version.
func kvContract(t *testing.T, kv consulkv.Store, keeps bool) {
	ctx := t.Context()
	txn := func(ops ...consulkv.Op) consulkv.Outcome {
		t.Helper()
		out := must.Get(kv.Txn(ctx, ops))(t)
		return out
	}
	read := func(key string) (*consulkv.Pair, uint64) {
		t.Helper()
		p, index, err := kv.Get(ctx, key, consulkv.Query{Consistent: true})
		must.Succeed(t, err)
		return p, index
	}
	cas := func(key, value string, index uint64) consulkv.Op {
		return consulkv.Op{Verb: consulkv.Cas, Key: key, Value: []byte(value), Index: index}
	}

	// One index for all writes of a transaction.
	both := txn(cas("t/a", "1", 0), cas("t/b", "", 0))
	a, indexA := read("t/a")
	b, _ := read("t/b")
	if both.Index == 0 || a.Index != both.Index || b.Index != both.Index || indexA < both.Index || len(b.Value) != 0 {
		t.Errorf("%+v, %+v, %+v", both, a, b)
	}
	// Conditions; all or nothing; every refused operation is reported.
	out := txn(cas("t/c", "1", 0), cas("t/a", "2", 0), cas("t/b", "2", b.Index), cas("t/d", "2", 7))
	if len(out.Refused) != 2 || out.Refused[0].Op != 1 || out.Refused[1].Op != 3 || out.Index != 0 {
		t.Errorf("%+v", out)
	}
	if c, index := read("t/c"); c != nil || index < both.Index {
		t.Errorf("half of a transaction: %+v; %d", c, index)
	}
	// Writing an equal value keeps its index.
	txn(cas("t/a", "1", a.Index))
	again, _ := read("t/a")
	expect.Equal(t, again.Index == a.Index, keeps, "index %d became %d", a.Index, again.Index)
	a = again
	for _, c := range []struct {
		op      consulkv.Op
		refused bool
	}{
		{consulkv.Op{Verb: consulkv.CheckIndex, Key: "t/a", Index: a.Index}, false},
		{consulkv.Op{Verb: consulkv.CheckIndex, Key: "t/a", Index: a.Index + 1}, true},
		{consulkv.Op{Verb: consulkv.CheckIndex, Key: "t/none", Index: 1}, true},
		{consulkv.Op{Verb: consulkv.DeleteCas, Key: "t/none", Index: 1}, false},
		{consulkv.Op{Verb: consulkv.DeleteCas, Key: "t/a", Index: a.Index - 1}, true},
	} {
		if out := txn(c.op); (len(out.Refused) > 0) != c.refused {
			t.Errorf("%+v: %+v", c.op, out)
		}
	}

	// Conditions that don't hold, beside those that do.
	for _, ops := range [][]consulkv.Op{
		{{Verb: consulkv.CheckGone, Key: "t/a"}},
		{{Verb: consulkv.CheckGone, Key: "t/none"}, cas("t/a", "2", a.Index+1)},
		{{Verb: consulkv.CheckIndex, Key: "t/none", Index: 0}},
	} {
		if out := txn(ops...); len(out.Refused) != 1 {
			t.Errorf("%+v: %+v", ops, out)
		}
	}
	// A key twice: a condition, and a removal.
	txn(cas("t/twice", "1", 0))
	twice, _ := read("t/twice")
	out = txn(consulkv.Op{Verb: consulkv.CheckIndex, Key: "t/twice", Index: twice.Index}, consulkv.Op{Verb: consulkv.DeleteCas, Key: "t/twice", Index: twice.Index})
	twice, _ = read("t/twice")
	expect.True(t, len(out.Refused) == 0 && twice == nil, "%+v, %+v", out, twice)
	// Levels, and a query for one key that returns at its change.
	txn(cas("t/deep/one", "1", 0), cas("t/deep/two", "1", 0))
	names, _, err := kv.Level(ctx, "t/")
	must.Succeed(t, err)
	slices.Sort(names)
	expect.SameList(t, names, []string{"t/a", "t/b", "t/deep/"})
	for _, key := range []string{"t/deep/one", "t/deep/two"} {
		txn(consulkv.Op{Verb: consulkv.Delete, Key: key})
	}
	_, seen := read("t/key")
	changed := make(chan *consulkv.Pair, 1)
	go func() {
		p, _, _ := kv.Get(ctx, "t/key", consulkv.Query{After: seen, Wait: 30 * time.Second})
		changed <- p
	}()
	txn(cas("t/key", "new", 0))
	p := <-changed
	expect.True(t, p != nil && string(p.Value) == "new", "%+v", p)
	txn(consulkv.Op{Verb: consulkv.Delete, Key: "t/key"})

	// Reads of keys, also of one that doesn't exist, at one time.
	out = txn(consulkv.Op{Verb: consulkv.Read, Key: "t/a"}, consulkv.Op{Verb: consulkv.Read, Key: "t"}, consulkv.Op{Verb: consulkv.Read, Key: "t/b"})
	if len(out.Pairs) != 2 || string(out.Pairs[0].Value) != "1" || out.Pairs[1].Key != "t/b" || out.Pairs[1].Index != b.Index || out.Index != 0 || len(out.Refused) > 0 {
		t.Errorf("%+v", out)
	}
	// A removal without a condition.
	txn(consulkv.Op{Verb: consulkv.Set, Key: "t/e", Value: []byte("1")})
	for range 2 { // also of a key that doesn't exist
		if out := txn(consulkv.Op{Verb: consulkv.Delete, Key: "t/e"}); len(out.Refused) > 0 {
			t.Errorf("%+v", out)
		}
	}
	e, _ := read("t/e")
	expect.True(t, e == nil, "%+v after its removal", e)

	// A blocking query returns at a change, including removals.
	list := func(after uint64, wait time.Duration) (pairs []consulkv.Pair, index uint64) {
		t.Helper()
		pairs, index, err := kv.List(ctx, "t/", consulkv.Query{After: after, Wait: wait})
		must.Succeed(t, err)
		return pairs, index
	}
	pairs, index := list(0, 0)
	expect.Len(t, pairs, 2)
	type answer struct {
		pairs []consulkv.Pair
		index uint64
	}
	held := make(chan answer, 1)
	go func() {
		var a answer
		a.pairs, a.index, _ = kv.List(ctx, "t/", consulkv.Query{After: index, Wait: 30 * time.Second})
		held <- a
	}()
	txn(consulkv.Op{Verb: consulkv.CheckIndex, Key: "t/b", Index: b.Index}, consulkv.Op{Verb: consulkv.DeleteCas, Key: "t/b", Index: b.Index})
	got := <-held
	if len(got.pairs) != 1 || got.index <= index {
		t.Errorf("%+v after %d", got, index)
	}
	if gone, at := read("t/b"); gone != nil || at < got.index {
		t.Errorf("%+v at %d, removed at %d", gone, at, got.index)
	}
	// Without a change, it returns at its timeout.
	if _, index := list(got.index, 10*time.Millisecond); index != got.index {
		t.Errorf("%d became %d", got.index, index)
	}

	// Sessions and locks.
	one := must.Get(kv.NewSession(ctx, "one", 10*time.Second, time.Second))(t)
	two := must.Get(kv.NewSession(ctx, "two", 10*time.Second, time.Second))(t)
	lock := func(verb consulkv.Verb, session, value string) bool {
		t.Helper()
		return len(txn(consulkv.Op{Verb: verb, Key: "t/lock", Session: session, Value: []byte(value)}).Refused) == 0
	}
	if !lock(consulkv.Lock, one, "1") || !lock(consulkv.Lock, one, "2") || lock(consulkv.Lock, two, "3") || lock(consulkv.Unlock, two, "") {
		t.Error("a lock is not its holder's")
	}
	if p, _ := read("t/lock"); p.Session != one || string(p.Value) != "2" {
		t.Errorf("%+v", p)
	}
	first, _ := read("t/lock")
	lock(consulkv.Lock, one, "2")
	if p, _ := read("t/lock"); keeps && p.Index != first.Index {
		t.Errorf("locked again with the same value: index %d became %d", first.Index, p.Index)
	}
	if !lock(consulkv.Unlock, one, "free") || !lock(consulkv.Lock, two, "4") {
		t.Error("a lock given back can't be had at once")
	}
	out = txn(consulkv.Op{Verb: consulkv.Unlock, Key: "t/lock", Session: two}, consulkv.Op{Verb: consulkv.Lock, Key: "t/lock", Session: one, Value: []byte("5")})
	p, _ = read("t/lock")
	expect.True(t, len(out.Refused) == 0 && p != nil && p.Session == one, "%+v, %+v", out, p)
	for _, id := range []string{one, two} {
		if alive, err := kv.Renew(ctx, id); err != nil || !alive {
			t.Errorf("renew: %v, %v", alive, err)
		}
		for range 2 {
			expect.Succeed(t, kv.EndSession(ctx, id))
		}
		if alive, err := kv.Renew(ctx, id); err != nil || alive {
			t.Errorf("renewed after its end: %v, %v", alive, err)
		}
	}
	if p, _ := read("t/lock"); p != nil {
		t.Errorf("%+v outlives its session", p)
	}
	expect.False(t, lock(consulkv.Lock, one, ""), "a session that is over has locked")
}
