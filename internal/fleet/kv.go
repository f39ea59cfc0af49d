package fleet

import (
	"context"
	"time"
)

// KV is what a Tree needs of Consul: NewConsul makes the real one, package
// fleettest one in memory. Every method ends with its context, and an error of
// any says that Consul could not be asked, or didn't answer in full.
type KV interface {
	// Get reads one key; nil when there is none. The answer is not older than the
	// call, and shows all writes up to index.
	Get(ctx context.Context, key string, q Query) (pair *Pair, index uint64, err error)
	// List reads all keys under a prefix, in no particular order, and hands them to
	// part as they come, some at a time; they are part's from then on. After an error
	// what it was handed counts for nothing.
	List(ctx context.Context, prefix string, q Query, part func([]Pair)) (index uint64, err error)
	// Level reads what lies directly below a prefix that ends with a slash: keys, and
	// of those further below what they have in common up to their next slash. All
	// are whole, with the prefix, in no particular order.
	Level(ctx context.Context, prefix string) (names []string, err error)
	// Txn does all operations, at one index, or none of them. It is asked again
	// after an error, which leaves open whether it has happened.
	Txn(ctx context.Context, ops []Op) (Outcome, error)

	// NewSession starts a session without health checks, whose keys are deleted
	// when it ends.
	NewSession(ctx context.Context, name string, ttl, lockDelay time.Duration) (id string, err error)
	// Renew makes the session live for another ttl and reports whether it still
	// did.
	Renew(ctx context.Context, id string) (alive bool, err error)
	// EndSession ends the session; one that isn't there is no error.
	EndSession(ctx context.Context, id string) error
}

// list reads all keys under a prefix, of which there are not many.
func list(ctx context.Context, kv KV, prefix string, q Query) (pairs []Pair, index uint64, err error) {
	index, err = kv.List(ctx, prefix, q, func(part []Pair) { pairs = append(pairs, part...) })
	if err != nil {
		return nil, 0, err
	}
	return pairs, index, nil
}

// Query says how to read.
type Query struct {
	// After, when not 0, holds the question until something has changed after that
	// index or Wait has passed. A return is not a change.
	After uint64
	Wait  time.Duration
	// Consistent has the leader make sure that it still is.
	Consistent bool
}

// Pair is one key of the KV store with its value, as Consul's API has it.
type Pair struct {
	Key     string
	Value   []byte
	Index   uint64 `json:"ModifyIndex"`
	Session string // that holds it as a lock; "" for none
}

// Verb is what an Op does.
type Verb string

// The verbs are Consul's. Cas with index 0 wants that there is no such key.
const (
	Cas        Verb = "cas"
	DeleteCas  Verb = "delete-cas" // happens also when there is no such key
	CheckIndex Verb = "check-index"
	Lock       Verb = "lock"
	Unlock     Verb = "unlock"
)

// Op is one operation of a transaction.
type Op struct {
	Verb    Verb
	Key     string
	Value   []byte
	Index   uint64
	Session string
}

// Outcome is what became of a transaction.
type Outcome struct {
	// Index is that of everything it wrote; 0 when it was refused, or wrote nothing.
	Index uint64
	// Refused are the operations that were refused. Nothing has happened if there
	// are any.
	Refused []Refusal
}

// Refusal names an operation by its place in the transaction and says why it was
// refused.
type Refusal struct {
	Op     int
	Reason string
}
