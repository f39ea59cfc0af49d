package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironvip/ironvip/fleet/kv"
)

// A transaction of etcd compares keys with constants. Operations of a kv.Store depend on what keys are: a lock is
// had if it is free or mine. So each transaction is worked out for a state of its keys, and compares that this is their
// state. If it isn't, etcd answers with what they are, and the transaction is worked out again.
//
// Without locks, the first state is the one that the operations expect, so a transaction that succeeds is one request.

// state is what a key is.
type state struct {
	index uint64 // 0: it does not exist
	lease clientv3.LeaseID
}

// plan is a transaction worked out for a state of its keys.
type plan struct {
	keys    []string // in the order of their first operations
	before  map[string]state
	puts    map[string]kv.Op // the last operation that writes each key
	reads   []string
	refused []kv.Refusal
}

// Txn implements kv.Store.
func (c *Client) Txn(ctx context.Context, ops []kv.Op) (kv.Outcome, error) {
	etcd, err := c.open(ctx)
	if err != nil {
		return kv.Outcome{}, err
	}
	ctx = clientv3.WithRequireLeader(ctx)
	before, actual := expected(ops), false
	for {
		var then []clientv3.Op
		var compares []clientv3.Cmp
		p := workOut(ops, before)
		switch {
		case len(p.refused) > 0 && actual:
			return kv.Outcome{Refused: p.refused}, nil
		case before == nil || len(p.refused) > 0: // ask for the state
			compares = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(p.keys[0]), "<", 0)} // never
		default:
			compares, then = p.compares(), p.operations()
		}
		r, err := etcd.Txn(ctx).If(compares...).Then(then...).Else(p.look()...).Commit()
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return kv.Outcome{Refused: overSessions(ops)}, nil
		}
		if err != nil {
			return kv.Outcome{}, explain(err)
		}
		if r.Succeeded {
			return p.outcome(r), nil
		}
		before, actual = map[string]state{}, true
		for i, k := range p.keys {
			before[k] = state{}
			if kvs := r.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
				before[k] = state{uint64(kvs[0].ModRevision), clientv3.LeaseID(kvs[0].Lease)}
			}
		}
	}
}

// expected returns the state of the keys with which all operations succeed, or nil if there are several.
func expected(ops []kv.Op) map[string]state {
	of := map[string]state{}
	for _, op := range ops {
		switch op.Verb {
		case kv.Lock, kv.Unlock:
			return nil
		case kv.Cas, kv.CheckIndex, kv.DeleteCas:
			of[op.Key] = state{index: op.Index}
		case kv.CheckGone:
			of[op.Key] = state{}
		}
	}
	return of
}

// workOut works out a transaction.
func workOut(ops []kv.Op, before map[string]state) *plan {
	p := &plan{before: map[string]state{}, puts: map[string]kv.Op{}}
	now := map[string]state{}
	for i, op := range ops {
		if op.Verb == kv.Read {
			p.reads = append(p.reads, op.Key)
			continue
		}
		if _, known := p.before[op.Key]; !known && op.Verb != kv.Set && op.Verb != kv.Delete {
			p.keys = append(p.keys, op.Key)
			p.before[op.Key] = before[op.Key]
		}
		s, changed := now[op.Key]
		if !changed {
			s = before[op.Key]
		}
		refuse := func(is bool, why string) bool {
			if is {
				p.refused = append(p.refused, kv.Refusal{Op: i, Reason: why})
			}
			return is
		}
		put := func(after state) { p.puts[op.Key], now[op.Key] = op, after }
		mine := leaseOf(op.Session)
		switch op.Verb {
		case kv.Set:
			put(s)
		case kv.Delete:
			put(state{})
		case kv.Cas:
			if !refuse(s.index != op.Index, "the key has another version") {
				put(s)
			}
		case kv.CheckIndex:
			refuse(s.index != op.Index || s.index == 0, "the key has another version")
		case kv.CheckGone:
			refuse(s.index != 0, "the key exists")
		case kv.DeleteCas:
			if !refuse(s.index != 0 && s.index != op.Index, "the key has another version") {
				put(state{})
			}
		case kv.Lock:
			if !refuse(mine == 0 || s.lease != 0 && s.lease != mine, "another session holds the lock") {
				put(state{s.index, mine})
			}
		case kv.Unlock:
			if !refuse(mine == 0 || s.lease != mine, "the session does not hold the lock") {
				put(state{index: s.index})
			}
		}
	}
	return p
}

func (p *plan) compares() (all []clientv3.Cmp) {
	for _, k := range p.keys {
		all = append(all, clientv3.Compare(clientv3.ModRevision(k), "=", int64(p.before[k].index)))
	}
	return all
}

// operations returns what is to be done, in no order: each key once.
func (p *plan) operations() (all []clientv3.Op) {
	for key, op := range p.puts {
		switch {
		case op.Verb == kv.Delete || op.Verb == kv.DeleteCas:
			all = append(all, clientv3.OpDelete(key))
		case op.Verb == kv.Lock:
			all = append(all, clientv3.OpPut(key, string(op.Value), clientv3.WithLease(leaseOf(op.Session))))
		default:
			all = append(all, clientv3.OpPut(key, string(op.Value)))
		}
	}
	for _, key := range p.reads {
		all = append(all, clientv3.OpGet(key))
	}
	return all
}

// look returns the reads of what the keys are.
func (p *plan) look() (all []clientv3.Op) {
	for _, key := range p.keys {
		all = append(all, clientv3.OpGet(key))
	}
	return all
}

func (p *plan) outcome(r *clientv3.TxnResponse) (out kv.Outcome) {
	if len(p.puts) > 0 {
		out.Index = uint64(r.Header.Revision)
	}
	for _, answer := range r.Responses {
		if read := answer.GetResponseRange(); read != nil {
			for _, pair := range read.Kvs {
				out.Pairs = append(out.Pairs, pairOf(pair))
			}
		}
	}
	return out
}

// overSessions refuses the locks: a session is over.
func overSessions(ops []kv.Op) (all []kv.Refusal) {
	for i, op := range ops {
		if op.Verb == kv.Lock {
			all = append(all, kv.Refusal{Op: i, Reason: "the session is over"})
		}
	}
	return all
}
