package fleet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

func TestMemoryIsAKV(t *testing.T) { kvContract(t, fleettest.NewMemory().Client("one"), true) }

// kvContract is the behavior that a Tree requires from a KV store. It is tested for the store in
// memory, for Consul and for etcd. Keeps says that a value that is written again keeps its version.
func kvContract(t *testing.T, store kv.Store, keeps bool) {
	ctx := t.Context()
	txn := func(ops ...kv.Op) kv.Outcome {
		t.Helper()
		out := must.Get(store.Txn(ctx, ops))(t)
		return out
	}
	read := func(key string) (*kv.Pair, uint64) {
		t.Helper()
		p, index, err := store.Get(ctx, key, kv.Query{Consistent: true})
		must.Succeed(t, err)
		return p, index
	}
	cas := func(key, value string, index uint64) kv.Op {
		return kv.Op{Verb: kv.Cas, Key: key, Value: []byte(value), Index: index}
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
		op      kv.Op
		refused bool
	}{
		{kv.Op{Verb: kv.CheckIndex, Key: "t/a", Index: a.Index}, false},
		{kv.Op{Verb: kv.CheckIndex, Key: "t/a", Index: a.Index + 1}, true},
		{kv.Op{Verb: kv.CheckIndex, Key: "t/none", Index: 1}, true},
		{kv.Op{Verb: kv.DeleteCas, Key: "t/none", Index: 1}, false},
		{kv.Op{Verb: kv.DeleteCas, Key: "t/a", Index: a.Index - 1}, true},
	} {
		if out := txn(c.op); (len(out.Refused) > 0) != c.refused {
			t.Errorf("%+v: %+v", c.op, out)
		}
	}

	// Conditions that don't hold, beside those that do.
	for _, ops := range [][]kv.Op{
		{{Verb: kv.CheckGone, Key: "t/a"}},
		{{Verb: kv.CheckGone, Key: "t/none"}, cas("t/a", "2", a.Index+1)},
		{{Verb: kv.CheckIndex, Key: "t/none", Index: 0}},
	} {
		if out := txn(ops...); len(out.Refused) != 1 {
			t.Errorf("%+v: %+v", ops, out)
		}
	}
	// A key twice: a condition, and a removal.
	txn(cas("t/twice", "1", 0))
	twice, _ := read("t/twice")
	out = txn(kv.Op{Verb: kv.CheckIndex, Key: "t/twice", Index: twice.Index}, kv.Op{Verb: kv.DeleteCas, Key: "t/twice", Index: twice.Index})
	twice, _ = read("t/twice")
	expect.True(t, len(out.Refused) == 0 && twice == nil, "%+v, %+v", out, twice)
	// Levels, and a query for one key that returns at its change.
	txn(cas("t/deep/one", "1", 0), cas("t/deep/two", "1", 0))
	names, _, err := store.Level(ctx, "t/")
	must.Succeed(t, err)
	slices.Sort(names)
	expect.SameList(t, names, []string{"t/a", "t/b", "t/deep/"})
	for _, key := range []string{"t/deep/one", "t/deep/two"} {
		txn(kv.Op{Verb: kv.Delete, Key: key})
	}
	_, seen := read("t/key")
	changed := make(chan *kv.Pair, 1)
	go func() {
		p, _, _ := store.Get(ctx, "t/key", kv.Query{After: seen, Wait: 30 * time.Second})
		changed <- p
	}()
	txn(cas("t/key", "new", 0))
	p := <-changed
	expect.True(t, p != nil && string(p.Value) == "new", "%+v", p)
	txn(kv.Op{Verb: kv.Delete, Key: "t/key"})

	// Reads of keys, also of one that doesn't exist, at one time.
	out = txn(kv.Op{Verb: kv.Read, Key: "t/a"}, kv.Op{Verb: kv.Read, Key: "t"}, kv.Op{Verb: kv.Read, Key: "t/b"})
	if len(out.Pairs) != 2 || string(out.Pairs[0].Value) != "1" || out.Pairs[1].Key != "t/b" || out.Pairs[1].Index != b.Index || out.Index != 0 || len(out.Refused) > 0 {
		t.Errorf("%+v", out)
	}
	// A removal without a condition.
	txn(kv.Op{Verb: kv.Set, Key: "t/e", Value: []byte("1")})
	for range 2 { // also of a key that doesn't exist
		if out := txn(kv.Op{Verb: kv.Delete, Key: "t/e"}); len(out.Refused) > 0 {
			t.Errorf("%+v", out)
		}
	}
	e, _ := read("t/e")
	expect.True(t, e == nil, "%+v after its removal", e)

	// A blocking query returns at a change, including removals.
	list := func(after uint64, wait time.Duration) (pairs []kv.Pair, index uint64) {
		t.Helper()
		pairs, index, err := store.List(ctx, "t/", kv.Query{After: after, Wait: wait})
		must.Succeed(t, err)
		return pairs, index
	}
	pairs, index := list(0, 0)
	expect.Len(t, pairs, 2)
	type answer struct {
		pairs []kv.Pair
		index uint64
	}
	held := make(chan answer, 1)
	go func() {
		var a answer
		a.pairs, a.index, _ = store.List(ctx, "t/", kv.Query{After: index, Wait: 30 * time.Second})
		held <- a
	}()
	txn(kv.Op{Verb: kv.CheckIndex, Key: "t/b", Index: b.Index}, kv.Op{Verb: kv.DeleteCas, Key: "t/b", Index: b.Index})
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
	one := must.Get(store.NewSession(ctx, "one", 10*time.Second, time.Second))(t)
	two := must.Get(store.NewSession(ctx, "two", 10*time.Second, time.Second))(t)
	lock := func(verb kv.Verb, session, value string) bool {
		t.Helper()
		return len(txn(kv.Op{Verb: verb, Key: "t/lock", Session: session, Value: []byte(value)}).Refused) == 0
	}
	if !lock(kv.Lock, one, "1") || !lock(kv.Lock, one, "2") || lock(kv.Lock, two, "3") || lock(kv.Unlock, two, "") {
		t.Error("a lock is not its holder's")
	}
	if p, _ := read("t/lock"); p.Session != one || string(p.Value) != "2" {
		t.Errorf("%+v", p)
	}
	first, _ := read("t/lock")
	lock(kv.Lock, one, "2")
	if p, _ := read("t/lock"); keeps && p.Index != first.Index {
		t.Errorf("locked again with the same value: index %d became %d", first.Index, p.Index)
	}
	if !lock(kv.Unlock, one, "free") || !lock(kv.Lock, two, "4") {
		t.Error("a lock given back can't be had at once")
	}
	out = txn(kv.Op{Verb: kv.Unlock, Key: "t/lock", Session: two}, kv.Op{Verb: kv.Lock, Key: "t/lock", Session: one, Value: []byte("5")})
	p, _ = read("t/lock")
	expect.True(t, len(out.Refused) == 0 && p != nil && p.Session == one, "%+v, %+v", out, p)
	out = txn(kv.Op{Verb: kv.Delete, Key: "t/lock"}, kv.Op{Verb: kv.Lock, Key: "t/lock", Session: one, Value: []byte("6")})
	p, _ = read("t/lock")
	expect.True(t, len(out.Refused) == 0 && p != nil && p.Session == one, "%+v, %+v", out, p)
	for _, id := range []string{one, two} {
		if alive, err := store.Renew(ctx, id); err != nil || !alive {
			t.Errorf("renew: %v, %v", alive, err)
		}
		for range 2 {
			expect.Succeed(t, store.EndSession(ctx, id))
		}
		if alive, err := store.Renew(ctx, id); err != nil || alive {
			t.Errorf("renewed after its end: %v, %v", alive, err)
		}
	}
	if p, _ := read("t/lock"); p != nil {
		t.Errorf("%+v outlives its session", p)
	}
	expect.False(t, lock(kv.Lock, one, ""), "a session that is over has locked")
}
