// Package etcdkv is the store of a fleet in etcd: a consulkv.Store. Package consulkv has the one in Consul.
//
// A version is etcd's revision, a session is a lease, and a key is locked by the lease that it is attached to. Callers must not
// depend on these differences:
//
//	                               Consul                       etcd
//	a value that is written again  keeps its version            gets a new one
//	after a session has expired    its locks are held back      its locks are free at once
//	a session expires after        one to two TTLs              one TTL
//	the version of a folder        of its newest change         of the store
//	a transaction                  128 operations, 512 KiB      128 operations, 1.5 MiB
//
// It knows nothing of what the keys mean.
package etcdkv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/ironvip/ironvip/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/wake"
)

// Config has etcd's endpoints and the credentials.
type Config struct {
	Endpoints []string    // "http://host:port" or "https://host:port"; another one is used if one fails
	TLS       *tls.Config // with https
	Username  string      // "": none
	Password  string
}

const (
	// A member that does not answer for dialKeepAlive and dialTimeout is left for another one.
	dialTimeout   = 3 * time.Second
	dialKeepAlive = 5 * time.Second
	page          = 5000 // keys of one answer, so that a large folder neither exceeds a limit nor holds up the server
)

// Client is the Store of a real etcd, 3.5 or newer.
type Client struct {
	etcd *clientv3.Client
	// connected is sent at each new connection. A watch that etcd's client has continued there waits for a version after
	// its last one, which servers that were set back to a backup may not reach for long.
	connected wake.Broadcast
	following parallel.Group
	stop      context.CancelFunc
}

var _ consulkv.Store = (*Client)(nil)

// New returns etcd's store. It makes no request.
func New(o Config) (*Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: o.Endpoints, TLS: o.TLS, Username: o.Username, Password: o.Password,
		DialTimeout: dialTimeout, DialKeepAliveTime: dialKeepAlive, DialKeepAliveTimeout: dialTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, explain(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{etcd: client, stop: stop}
	c.following, ctx = parallel.NewGroup(ctx)
	c.following.Run(ctx, c.followConnections)
	return c, nil
}

// Engine implements consulkv.Store.
func (c *Client) Engine() consulkv.Engine {
	return consulkv.Engine{Name: "etcd", Put: "etcdctl put", Delete: "etcdctl del", Look: "etcdctl endpoint health", Access: "this host's credentials"}
}

// Close ends all connections.
func (c *Client) Close() {
	c.stop()
	_ = c.following.Wait()
	_ = c.etcd.Close()
}

func (c *Client) followConnections(ctx context.Context) {
	conn := c.etcd.ActiveConnection()
	for state := conn.GetState(); conn.WaitForStateChange(ctx, state); {
		if state = conn.GetState(); state == connectivity.Ready {
			c.connected.Send()
		}
	}
}

func explain(err error) error {
	if s, is := status.FromError(err); is && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("etcd: %s", strings.TrimPrefix(s.Message(), "etcdserver: "))
	}
	return fmt.Errorf("etcd: %w", err)
}

func pairOf(kv *mvccpb.KeyValue) consulkv.Pair {
	return consulkv.Pair{Key: string(kv.Key), Value: kv.Value, Index: uint64(kv.ModRevision), Session: sessionOf(clientv3.LeaseID(kv.Lease))}
}

func sessionOf(lease clientv3.LeaseID) string {
	if lease == 0 {
		return ""
	}
	return strconv.FormatInt(int64(lease), 16)
}

// leaseOf returns the lease of a session; 0 if it is none of etcd's.
func leaseOf(session string) clientv3.LeaseID {
	id, _ := strconv.ParseInt(session, 16, 64)
	return clientv3.LeaseID(id)
}

// Get implements consulkv.Store.
func (c *Client) Get(ctx context.Context, key string, q consulkv.Query) (*consulkv.Pair, uint64, error) {
	if q.After > 0 {
		switch e, err := c.watch(ctx, key, q); {
		case err != nil:
			return nil, 0, err
		case e != nil && e.Type == clientv3.EventTypeDelete:
			return nil, uint64(e.Kv.ModRevision), nil
		case e != nil:
			pair := pairOf(e.Kv)
			return &pair, pair.Index, nil
		}
	}
	r, err := c.etcd.Get(ctx, key, reading(q)...)
	if err != nil {
		return nil, 0, explain(err)
	}
	if len(r.Kvs) == 0 {
		return nil, uint64(r.Header.Revision), nil
	}
	pair := pairOf(r.Kvs[0])
	return &pair, uint64(r.Header.Revision), nil
}

// reading returns the options of a read. A stale one is answered by any member from what it has.
func reading(q consulkv.Query, options ...clientv3.OpOption) []clientv3.OpOption {
	if q.Stale {
		options = append(options, clientv3.WithSerializable())
	}
	return options
}

// watch waits for a change after a version, and returns the newest one. It returns none if the keys are to be read: the time
// is over, or etcd can't tell, because its history is compacted or it may have gone back.
func (c *Client) watch(ctx context.Context, key string, q consulkv.Query, options ...clientv3.OpOption) (newest *clientv3.Event, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	connected := c.connected.Next()
	over := time.NewTimer(q.Wait)
	defer over.Stop()
	changes := c.etcd.Watch(ctx, key, append(options, clientv3.WithRev(int64(q.After)+1), clientv3.WithCreatedNotify())...)
	for {
		select {
		case <-over.C:
			return nil, nil
		case <-connected:
			return nil, nil
		case r, open := <-changes:
			switch {
			case !open && ctx.Err() != nil:
				return nil, explain(ctx.Err())
			case !open:
				return nil, errors.New("etcd: the watch has ended")
			case r.CompactRevision > 0, r.Created && uint64(r.Header.Revision) < q.After:
				return nil, nil
			case r.Err() != nil:
				return nil, explain(r.Err())
			case len(r.Events) > 0:
				return r.Events[len(r.Events)-1], nil
			}
		}
	}
}

// List implements consulkv.Store.
func (c *Client) List(ctx context.Context, prefix string, q consulkv.Query) (pairs []consulkv.Pair, index uint64, err error) {
	if q.After > 0 {
		if _, err := c.watch(ctx, prefix, q, clientv3.WithPrefix()); err != nil {
			return nil, 0, err
		}
	}
	return c.read(ctx, prefix, q)
}

// Level implements consulkv.Store.
func (c *Client) Level(ctx context.Context, prefix string) (names []string, index uint64, err error) {
	pairs, index, err := c.read(ctx, prefix, consulkv.Query{}, clientv3.WithKeysOnly())
	last := ""
	for _, p := range pairs { // in order
		name := p.Key
		if first, _, deeper := strings.Cut(name[len(prefix):], "/"); deeper {
			name = prefix + first + "/"
		}
		if name != last {
			names = append(names, name)
		}
		last = name
	}
	return names, index, err
}

// read reads all keys under a prefix at one revision.
func (c *Client) read(ctx context.Context, prefix string, q consulkv.Query, options ...clientv3.OpOption) (pairs []consulkv.Pair, index uint64, err error) {
	options = reading(q, append(options, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(page))...)
	for from, more := prefix, true; more; from = pairs[len(pairs)-1].Key + "\x00" {
		if index > 0 {
			options = append(options, clientv3.WithRev(int64(index)))
		}
		r, err := c.etcd.Get(ctx, from, options...)
		if err != nil {
			return nil, 0, explain(err)
		}
		if index == 0 {
			index = uint64(r.Header.Revision)
		}
		for _, kv := range r.Kvs {
			pairs = append(pairs, pairOf(kv))
		}
		if more = r.More && len(r.Kvs) > 0; !more {
			break
		}
	}
	return pairs, index, nil
}

// NewSession implements consulkv.Store. A lease has no name, and etcd no delay of locks.
func (c *Client) NewSession(ctx context.Context, _ string, ttl, _ time.Duration) (string, error) {
	r, err := c.etcd.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return "", explain(err)
	}
	return sessionOf(r.ID), nil
}

// Renew implements consulkv.Store.
func (c *Client) Renew(ctx context.Context, id string) (alive bool, err error) {
	if _, err = c.etcd.KeepAliveOnce(ctx, leaseOf(id)); errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false, nil
	} else if err != nil {
		return false, explain(err)
	}
	return true, nil
}

// EndSession implements consulkv.Store.
func (c *Client) EndSession(ctx context.Context, id string) error {
	if _, err := c.etcd.Revoke(ctx, leaseOf(id)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return explain(err)
	}
	return nil
}
