// Package tokens keeps the tokens that callers of the API identify themselves with.
//
// Its store is the fleet's tree, or the state file of a host without a fleet, so a token works on
// every host of a fleet. Its inputs are Create, Revoke and what other hosts write. Its outputs are
// the list of tokens, and the grant of a token that a caller presents. The store has the SHA-256 of
// a token only: 32 random bytes need no slower hash.
package tokens

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Folder is the folder in the fleet's tree, and the bucket in the state file.
const Folder = "tokens"

// prefix begins every token, so that people and scanners of repositories recognize one.
const prefix = "ironvip_"

// secretSize is in bytes.
const secretSize = 32

// MaxLength bounds a token that a caller presents, in bytes.
const MaxLength = len(prefix) + secretSize*4/3 + 1

// Why a token is refused. Test for them with errors.Is.
var (
	ErrUnknown = errors.New("unknown token")
	ErrExpired = errors.New("expired token")
)

// Why a token is not created or revoked. Test for them with errors.Is.
var (
	ErrExists  = errors.New("a token of this name exists")
	ErrNoToken = errors.New("no such token")
)

// Record is a stored token. Its key is the token's name.
type Record struct {
	Role       string         `json:"role"`
	Namespaces []string       `json:"namespaces,omitempty"`
	Hostnames  []string       `json:"hostnames,omitempty"`
	Backends   []netip.Prefix `json:"backends,omitempty"`
	Hash       string         `json:"hash"` // SHA-256 of the whole token, hexadecimal
	Created    time.Time      `json:"created"`
	Expires    time.Time      `json:"expires,omitzero"`
	Author     string         `json:"author,omitempty"`
}

// Check returns why this host can't use a stored token, or nil.
func Check(_ string, r Record) error {
	_, _, err := r.read()
	return err
}

// read returns the grant and the hash of a record.
func (r Record) read() (g access.Grant, hash [sha256.Size]byte, err error) {
	if g.Role, err = access.ParseRole(r.Role); err != nil {
		return g, hash, err
	}
	g.Namespaces, g.Hostnames, g.Backends = r.Namespaces, r.Hostnames, r.Backends
	raw, err := hex.DecodeString(r.Hash)
	if err != nil || len(raw) != len(hash) {
		return g, hash, fmt.Errorf("the hash is not a SHA-256")
	}
	return g, [sha256.Size]byte(raw), g.Check()
}

// Token is a token without its secret.
type Token struct {
	Name string
	access.Grant
	Created time.Time
	Expires time.Time // zero: never
	Author  string    // who created it
}

// entry is a Token with what a caller is compared with.
type entry struct {
	Token
	hash [sha256.Size]byte
}

// Tokens follows the store. Its methods are safe for concurrent use.
type Tokens struct {
	store registry.Store[Record]
	now   func() time.Time
	feed  registry.Feed[Record]
	locks registry.Locks

	mu     sync.RWMutex
	byName map[string]entry
}

// New returns the tokens of a store that may not have been read yet. now is the host's clock.
func New(store registry.Store[Record], now func() time.Time) *Tokens {
	t := &Tokens{store: store, now: now, feed: store.Watch(), byName: map[string]entry{}}
	t.read()
	return t
}

// Run follows the store until the context ends, and returns its error.
func (t *Tokens) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.read():
		}
	}
}

// read receives changes of the store. It returns the channel of the next one.
func (t *Tokens) read() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return registry.Drain(t.feed, func(items []registry.Item[Record]) {
		for _, i := range items {
			t.receive(i)
		}
	})
}

// receive takes over a record. The caller holds mu.
func (t *Tokens) receive(i registry.Item[Record]) {
	delete(t.byName, i.Key)
	if i.Version == 0 {
		return
	}
	r := i.Value
	grant, hash, err := r.read()
	if err != nil {
		return // of a later version, perhaps: nobody gets in with it
	}
	t.byName[i.Key] = entry{Token{i.Key, grant, r.Created, r.Expires, r.Author}, hash}
}

// List returns all tokens by name, expired ones included.
func (t *Tokens) List() []Token {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]Token, 0, len(t.byName))
	for _, e := range t.byName {
		out = append(out, e.Token)
	}
	slices.SortFunc(out, func(a, b Token) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Caller returns who holds a token. The error is ErrUnknown, ErrExpired, or access.ErrNotReady while
// the store has not been read. It compares the hashes of all tokens, of which there are few.
func (t *Tokens) Caller(token string) (access.Caller, error) {
	if len(token) > MaxLength || !strings.HasPrefix(token, prefix) {
		return access.Caller{}, ErrUnknown
	}
	hash := sha256.Sum256([]byte(token))
	e, known := t.find(hash)
	if !known { // it may be in what the store has read and Run has not
		ready := table.IsClosed(t.store.Ready())
		t.read()
		if e, known = t.find(hash); !known && !ready {
			return access.Caller{}, access.ErrNotReady
		}
	}
	if !known {
		return access.Caller{}, ErrUnknown
	}
	if e.Expired(t.now()) {
		return access.Caller{}, fmt.Errorf("%w: %s expired at %s", ErrExpired, e.Name, e.Expires.UTC().Format(time.RFC3339))
	}
	return access.Caller{Name: "token " + e.Name, Grant: e.Grant}, nil
}

func (t *Tokens) find(hash [sha256.Size]byte) (e entry, known bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, e := range t.byName {
		if subtle.ConstantTimeCompare(hash[:], e.hash[:]) == 1 {
			return e, true
		}
	}
	return entry{}, false
}

// Expired reports whether the token is no longer valid.
func (t *Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// Create makes a token, which has the secret as its only copy. It is durable and valid on this host
// when Create returns. The error is ErrExists, a *registry.StoreError, or says which field is wrong.
func (t *Tokens) Create(ctx context.Context, token Token) (secret string, err error) {
	if err := vip.CheckLabel(token.Name); err != nil {
		return "", &FieldError{"name", err}
	}
	for _, n := range token.Namespaces {
		if err := vip.CheckLabel(n); err != nil {
			return "", &FieldError{"namespaces", err}
		}
	}
	for _, n := range token.Hostnames {
		if err := access.CheckHostname(n); err != nil {
			return "", &FieldError{"hostnames", err}
		}
	}
	if err := token.Check(); err != nil {
		return "", &FieldError{"role", err}
	}
	if token.Role == access.None {
		return "", &FieldError{"role", errors.New("a role is needed")}
	}
	if token.Expired(t.now()) {
		return "", &FieldError{"expires", fmt.Errorf("%s is in the past", token.Expires.UTC().Format(time.RFC3339))}
	}
	var random [secretSize]byte
	_, _ = rand.Read(random[:]) // never fails
	secret = prefix + base64.RawURLEncoding.EncodeToString(random[:])
	hash := sha256.Sum256([]byte(secret))
	record := Record{Role: token.Role.String(), Namespaces: token.Namespaces, Hostnames: token.Hostnames, Backends: token.Backends, Hash: hex.EncodeToString(hash[:]),
		Created: t.now().UTC().Truncate(time.Second), Expires: token.Expires, Author: token.Author}
	err = t.write(ctx, token.Name, func(exists bool) (*Record, error) {
		if exists {
			return nil, ErrExists
		}
		return &record, nil
	})
	if err != nil {
		return "", err
	}
	return secret, nil
}

// Revoke removes a token. Nobody gets in with it on this host when Revoke returns. The error is
// ErrNoToken or a *registry.StoreError.
func (t *Tokens) Revoke(ctx context.Context, name string) error {
	return t.write(ctx, name, func(exists bool) (*Record, error) {
		if !exists {
			return nil, ErrNoToken
		}
		return nil, nil
	})
}

// write replaces the record of a name by what change returns; nil removes it.
func (t *Tokens) write(ctx context.Context, name string, change func(exists bool) (*Record, error)) error {
	unlock, err := t.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	op := registry.Op[Record]{Key: name, Apply: func(confirmed bool) (*registry.Edit[Record], error) {
		version := t.store.Version(name)
		next, err := change(version != 0)
		if err != nil && !confirmed {
			return nil, registry.ErrConfirm // another host may have changed it
		}
		if err != nil {
			return nil, err
		}
		return &registry.Edit[Record]{Key: name, Version: version, Value: next}, nil
	}}
	if err := registry.Transact(ctx, t.store, []*registry.Op[Record]{&op}, false, func([]int) {}); err != nil {
		return err
	}
	if op.Err == nil { // the feed of a host without a fleet doesn't return its own writes
		t.mu.Lock()
		t.receive(t.store.Get(name))
		t.mu.Unlock()
	}
	return op.Err
}

// FieldError is a mistake in a token that Create was asked for.
type FieldError struct {
	Field string // "name", "role", "namespaces" or "expires"
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }
