package tokens

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// open returns the tokens of a state file, and a clock that the test sets.
func open(t *testing.T, path string) (tokens *Tokens, now *time.Time, closed func()) {
	t.Helper()
	db := must.Get(store.Open(path))(t)
	records := must.Get(registry.NewLocal(store.NewBucket[Record](db, Folder)))(t)
	now = new(time.Time)
	*now = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	return New(records, func() time.Time { return *now }), now, func() { db.Close() }
}

func create(t *testing.T, tokens *Tokens, token Token) string {
	t.Helper()
	secret := must.Get(tokens.Create(t.Context(), token))(t)
	return secret
}

// A token works until it expires or is revoked, also after a restart.
func TestLifeOfATokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	tokens, now, closed := open(t, path)
	forever := create(t, tokens, Token{Name: "deploy", Grant: access.Grant{Role: access.Registrar, Namespaces: []string{"shop"}}, Author: "root"})
	hour := create(t, tokens, Token{Name: "hour", Grant: access.Grant{Role: access.Viewer}, Expires: now.Add(time.Hour)})
	closed()

	tokens, now, closed = open(t, path)
	defer closed()
	if c, err := tokens.Caller(forever); err != nil || c.Name != "token deploy" || c.String() != "registrar of shop" {
		t.Errorf("after a restart: %v, %v", c, err)
	}
	if c, err := tokens.Caller(hour); err != nil || c.Role != access.Viewer {
		t.Errorf("after a restart: %v, %v", c, err)
	}
	*now = now.Add(time.Hour)
	if _, err := tokens.Caller(hour); !errors.Is(err, ErrExpired) || !strings.Contains(err.Error(), "hour expired at 2026-11-01T01:00:00Z") {
		t.Errorf("after its time: %v", err)
	}
	must.Succeed(t, tokens.Revoke(t.Context(), "deploy"))
	if _, err := tokens.Caller(forever); !errors.Is(err, ErrUnknown) {
		t.Errorf("after it was revoked: %v", err)
	}
	if list := tokens.List(); len(list) != 1 || list[0].Name != "hour" {
		t.Errorf("list: %v", list)
	}
	expect.Is(t, tokens.Revoke(t.Context(), "deploy"), ErrNoToken, "revoked twice")
}

func TestNobodyGetsInWithAnotherToken(t *testing.T) {
	tokens, _, closed := open(t, filepath.Join(t.TempDir(), "state"))
	defer closed()
	secret := create(t, tokens, Token{Name: "a", Grant: access.Grant{Role: access.Admin}})
	for name, text := range map[string]string{
		"empty": "", "prefix": prefix, "truncated": secret[:len(secret)-1], "longer": secret + "A", "huge": strings.Repeat(secret, 10000),
		"other case": strings.ToUpper(secret), "without prefix": strings.TrimPrefix(secret, prefix), "hash": tokens.store.Get("a").Value.Hash, "space": " " + secret,
	} {
		c, err := tokens.Caller(text)
		expect.Is(t, err, ErrUnknown, "%s: %v", name, c)
	}
	if stored := tokens.store.Get("a").Value; strings.Contains(stored.Hash, strings.TrimPrefix(secret, prefix)) || len(stored.Hash) != 64 {
		t.Errorf("stored: %+v", stored)
	}
}

func TestMistakes(t *testing.T) {
	tokens, now, closed := open(t, filepath.Join(t.TempDir(), "state"))
	defer closed()
	create(t, tokens, Token{Name: "a", Grant: access.Grant{Role: access.Viewer}})
	for _, c := range []struct {
		token Token
		want  string
	}{
		{Token{Name: "A b", Grant: access.Grant{Role: access.Viewer}}, "name: "},
		{Token{Name: "b"}, "role: a role is needed"},
		{Token{Name: "b", Grant: access.Grant{Role: access.Registrar}}, "role: a registrar needs at least one namespace"},
		{Token{Name: "b", Grant: access.Grant{Role: access.Viewer, Namespaces: []string{"shop"}}}, "role: only a registrar is limited"},
		{Token{Name: "b", Grant: access.Grant{Role: access.Registrar, Namespaces: []string{"Shop"}}}, "namespaces: "},
		{Token{Name: "b", Grant: access.Grant{Role: access.Viewer}, Expires: *now}, "expires: "},
		{Token{Name: "a", Grant: access.Grant{Role: access.Viewer}}, ErrExists.Error()},
	} {
		if secret, err := tokens.Create(t.Context(), c.token); err == nil || secret != "" || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.token, err, c.want)
		}
	}
	expect.Equal(t, len(tokens.List()), 1, "tokens")
}

// A record that this host can't read gives nothing to anybody.
func TestRecordsOfOthers(t *testing.T) {
	tokens, _, closed := open(t, filepath.Join(t.TempDir(), "state"))
	defer closed()
	secret := create(t, tokens, Token{Name: "a", Grant: access.Grant{Role: access.Admin}})
	good := tokens.store.Get("a").Value
	for name, edit := range map[string]func(*Record){
		"a later role":        func(r *Record) { r.Role = "emperor" },
		"no role":             func(r *Record) { r.Role = "none" },
		"another hash":        func(r *Record) { r.Hash = "sha3:" + r.Hash },
		"no hash":             func(r *Record) { r.Hash = "" },
		"no namespace":        func(r *Record) { r.Role = "registrar" },
		"namespaces of admin": func(r *Record) { r.Namespaces = []string{"x"} },
	} {
		r := good
		edit(&r)
		tokens.receive(registry.Item[Record]{Key: "a", Value: r, Version: 7})
		if c, err := tokens.Caller(secret); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		expect.True(t, Check("a", r) != nil, "%s: no error", name)
	}
	tokens.receive(registry.Item[Record]{Key: "a", Value: good, Version: 8})
	if _, err := tokens.Caller(secret); err != nil {
		t.Error(err)
	}
}

func TestRunEnds(t *testing.T) {
	tokens, _, closed := open(t, filepath.Join(t.TempDir(), "state"))
	defer closed()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Is(t, tokens.Run(ctx), context.Canceled)
}
