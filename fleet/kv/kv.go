// Package kv is what a fleet needs of its store: keys with versions, transactions, blocking queries, and sessions with
// locks. It knows nothing of what the keys mean. Packages consul and etcd implement Store, package fleettest has one in
// memory, and one test of the contract runs on all three.
package kv

import (
	"context"
	"time"
)

// Store is the store of a fleet. Every method returns when its context ends. An error means that the store could not be
// reached, or didn't answer in full.
type Store interface {
	// Get reads one key, and returns nil if it doesn't exist. The answer is not older than the
	// call, and includes all writes up to index.
	Get(ctx context.Context, key string, q Query) (pair *Pair, index uint64, err error)
	// List reads all keys under a prefix, in no particular order.
	List(ctx context.Context, prefix string, q Query) (pairs []Pair, index uint64, err error)
	// Level lists what is directly below a prefix that ends with a slash: keys, and folders with
	// a slash at their end. All are complete with the prefix, in no particular order. The index is
	// that of the newest change of any key below the prefix. Consul iterates over all of them, and etcd reads them.
	Level(ctx context.Context, prefix string) (names []string, index uint64, err error)
	// Txn does all operations at one index, or none of them. After an error the outcome is
	// unknown, and the caller may repeat it.
	Txn(ctx context.Context, ops []Op) (Outcome, error)

	// NewSession starts a session without health checks. Keys that it has locked are deleted when
	// it ends.
	NewSession(ctx context.Context, name string, ttl, lockDelay time.Duration) (id string, err error)
	// Renew extends the session by its TTL, and reports whether it still existed.
	Renew(ctx context.Context, id string) (alive bool, err error)
	// EndSession ends the session. It is no error if the session doesn't exist.
	EndSession(ctx context.Context, id string) error

	// Engine has the words for the store.
	Engine() Engine
}

// Engine has the words for a kind of store in messages and hints.
type Engine struct {
	Name        string // "consul"
	Put, Delete string // the commands that put and delete a key, without its arguments: "consul kv put"
	Look        string // the command that shows whether it works: "consul members"
	Access      string // what must be right for it to accept this host: "the token (consul.token_file)"
}

// Query selects the kind of read.
type Query struct {
	// After, if not 0, makes a blocking query: it returns when something has changed after that
	// index, when Wait has passed, or without a change.
	After uint64
	Wait  time.Duration
	// Consistent makes Consul's leader verify its leadership before it answers. Etcd always does.
	Consistent bool
	// Stale lets any of Consul's servers answer, also one that lags or is without a leader. The
	// answer may be older than the call.
	Stale bool
}

// Pair is one key of the KV store with its value.
type Pair struct {
	Key     string
	Value   []byte
	Index   uint64
	Session string // the session that has locked the key, or ""
}

// Verb is the kind of an Op.
type Verb string

// The verbs are Consul's. Cas with index 0 requires that the key doesn't exist.
const (
	Set        Verb = "set" // without a condition
	Cas        Verb = "cas"
	Delete     Verb = "delete"     // succeeds if the key doesn't exist
	DeleteCas  Verb = "delete-cas" // succeeds if the key doesn't exist
	CheckIndex Verb = "check-index"
	CheckGone  Verb = "check-not-exists"
	Read       Verb = "get-or-empty"
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

// Outcome is the result of a transaction.
type Outcome struct {
	// Index is the version of everything it wrote; 0 if it was refused, or wrote nothing.
	Index uint64
	// Pairs are the keys of Read that exist.
	Pairs []Pair
	// Refused lists the operations that failed. If there are any, nothing has happened.
	Refused []Refusal
}

// Refusal names a failed operation by its place in the transaction.
type Refusal struct {
	Op     int
	Reason string
}
