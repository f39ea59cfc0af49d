// Package consul is the store of a fleet in Consul: a kv.Store, by its KV store, transactions, blocking queries and
// sessions.
package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/internal/text"
)

// Config has Consul's address and the credentials.
type Config = consulclient.Config

// Client is the kv.Store of a real Consul.
type Client struct {
	client *api.Client
	close  func()
}

var _ kv.Store = (*Client)(nil)

// New returns Consul's KV store. It makes no request.
func New(c Config) (*Client, error) {
	client, closeIdle, err := consulclient.New(c)
	if err != nil {
		return nil, err
	}
	// Consul would otherwise compress its answers, which doubles its CPU time for them. It is
	// near: the host's own Consul agent, or servers in the same data center.
	client.AddHeader("Accept-Encoding", "identity")
	return &Client{client, closeIdle}, nil
}

// Words are the words for Consul.
var Words = kv.Engine{Name: "consul", Put: "consul kv put", Delete: "consul kv delete", Look: "consul members", Access: "the token (consul.token_file)"}

// Engine implements kv.Store.
func (c *Client) Engine() kv.Engine { return Words }

// Close closes idle connections.
func (c *Client) Close() { c.close() }

func options(ctx context.Context, q kv.Query) *api.QueryOptions {
	return (&api.QueryOptions{WaitIndex: q.After, WaitTime: q.Wait, RequireConsistent: q.Consistent, AllowStale: q.Stale}).WithContext(ctx)
}

// check validates an answer's headers. An answer that ACLs have filtered is an error.
func check(meta *api.QueryMeta, err error) (index uint64, _ error) {
	switch {
	case err != nil:
		return 0, explain(err)
	case meta.LastIndex == 0:
		return 0, errors.New("consul: answer invalid: no index")
	case meta.ResultsFilteredByACLs:
		return 0, errFiltered
	}
	return meta.LastIndex, nil
}

var errFiltered = errors.New("consul: answer incomplete: the token may not read all of it; it needs key_prefix read and write, and session write")

func explain(err error) error {
	plain := consulclient.Plain(err)
	var notReady *consulclient.NotReadyError
	var status api.StatusError
	switch {
	case errors.As(plain, &notReady) || !errors.As(plain, &status):
		return fmt.Errorf("consul: %w", plain)
	case status.Code == http.StatusForbidden:
		return fmt.Errorf("consul: the token is not accepted: %s", text.Clip(status.Body, 256))
	}
	return fmt.Errorf("consul: answers %d: %s", status.Code, text.Clip(status.Body, 256))
}

// Get implements kv.Store.
func (c *Client) Get(ctx context.Context, key string, q kv.Query) (*kv.Pair, uint64, error) {
	p, meta, err := c.client.KV().Get(key, options(ctx, q))
	index, err := check(meta, err)
	if err != nil || p == nil {
		return nil, index, err
	}
	pair := pairOf(p)
	return &pair, index, nil
}

func pairOf(p *api.KVPair) kv.Pair {
	return kv.Pair{Key: p.Key, Value: p.Value, Index: p.ModifyIndex, Session: p.Session}
}

// List implements kv.Store.
func (c *Client) List(ctx context.Context, prefix string, q kv.Query) ([]kv.Pair, uint64, error) {
	list, meta, err := c.client.KV().List(prefix, options(ctx, q))
	index, err := check(meta, err)
	if err != nil {
		return nil, 0, err
	}
	pairs := make([]kv.Pair, len(list))
	for i, p := range list {
		if p == nil || !strings.HasPrefix(p.Key, prefix) {
			return nil, 0, errors.New("consul: answer invalid: keys outside the prefix")
		}
		pairs[i] = pairOf(p)
	}
	return pairs, index, nil
}

// Level implements kv.Store.
func (c *Client) Level(ctx context.Context, prefix string) ([]string, uint64, error) {
	names, meta, err := c.client.KV().Keys(prefix, "/", options(ctx, kv.Query{}))
	index, err := check(meta, err)
	return names, index, err
}

// Txn implements kv.Store.
func (c *Client) Txn(ctx context.Context, ops []kv.Op) (kv.Outcome, error) {
	txn := make(api.TxnOps, len(ops))
	for i, op := range ops {
		txn[i] = &api.TxnOp{KV: &api.KVTxnOp{
			Verb: api.KVOp(op.Verb), Key: op.Key, Value: op.Value, Index: op.Index, Session: op.Session}}
	}
	ok, answer, _, err := c.client.Txn().Txn(txn, options(ctx, kv.Query{Consistent: true}))
	switch {
	case err != nil:
		return kv.Outcome{}, explain(err)
	case !ok && len(answer.Errors) == 0:
		return kv.Outcome{}, errors.New("consul: transaction refused without a reason")
	}
	var out kv.Outcome
	unread := map[string]bool{}
	for _, op := range ops {
		unread[op.Key] = op.Verb == kv.Read
	}
	for _, e := range answer.Errors {
		if strings.Contains(e.What, "Permission denied") || strings.Contains(e.What, "ACL not found") {
			return kv.Outcome{}, fmt.Errorf("consul: the token is not accepted: %s", e.What)
		}
		out.Refused = append(out.Refused, kv.Refusal{Op: e.OpIndex, Reason: e.What})
	}
	for _, r := range answer.Results {
		switch {
		case r == nil || r.KV == nil:
		case unread[r.KV.Key]:
			unread[r.KV.Key] = false
			if r.KV.ModifyIndex > 0 {
				out.Pairs = append(out.Pairs, pairOf(r.KV))
			}
		case r.KV.ModifyIndex > out.Index: // that of a CheckIndex is lower
			out.Index = r.KV.ModifyIndex
		}
	}
	if len(out.Refused) > 0 {
		return kv.Outcome{Refused: out.Refused}, nil
	}
	for _, missing := range unread {
		if missing { // Consul has an answer for keys that don't exist
			return kv.Outcome{}, errFiltered
		}
	}
	return out, nil
}

// NewSession implements kv.Store.
func (c *Client) NewSession(ctx context.Context, name string, ttl, lockDelay time.Duration) (string, error) {
	id, _, err := c.client.Session().CreateNoChecks(&api.SessionEntry{
		Name: name, TTL: ttl.String(), LockDelay: lockDelay, Behavior: api.SessionBehaviorDelete,
	}, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return "", explain(err)
	}
	if id == "" {
		return "", errors.New("consul: answer invalid: a session without an id")
	}
	return id, nil
}

// Renew implements kv.Store.
func (c *Client) Renew(ctx context.Context, id string) (bool, error) {
	entry, _, err := c.client.Session().Renew(id, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return false, explain(err)
	}
	return entry != nil, nil
}

// EndSession implements kv.Store.
func (c *Client) EndSession(ctx context.Context, id string) error {
	if _, err := c.client.Session().Destroy(id, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return explain(err)
	}
	return nil
}
