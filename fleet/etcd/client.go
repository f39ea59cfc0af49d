// Package etcd is the store of a fleet in etcd: a kv.Store.
//
// A version is etcd's revision, a session is a lease, and a key is locked by the lease that it is attached to. Callers must not
// depend on these differences:
//
//	                               Consul                       etcd
//	a value that is written again  keeps its version            gets a new one
//	after a session has expired    its locks are held back      its locks are free at once
//	a session expires after        one to two TTLs              one TTL, begun anew by an election
//	Set and Cas of a locked key    keep the lock                end it
//	the version of a folder        of its newest change         of the store
//	a transaction                  128 operations, 512 KiB      128 operations, 1.5 MiB
//
// It knows nothing of what the keys mean.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ironvip/ironvip/fleet/kv"
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
	dialKeepAlive = 10 * time.Second // gRPC allows no less
	page          = 5000             // keys of one answer, so that a large folder neither exceeds a limit nor holds up the server
)

// Client is the Store of a real etcd, 3.5 or newer.
type Client struct {
	config clientv3.Config
	// connected is sent when the last connection has ended, and at the next one. A watch that etcd's client continues waits for a
	// version after its last one, which servers that were set back to a backup may not reach for long.
	connected wake.Broadcast
	stream    atomic.Uint64 // of the watches
	following parallel.Group
	stop      context.CancelFunc

	opening chan struct{} // held by the caller that opens etcd
	etcd    atomic.Pointer[clientv3.Client]
}

var _ kv.Store = (*Client)(nil)

// New returns etcd's store. It makes no request.
func New(c Config) *Client {
	ctx, stop := context.WithCancel(context.Background())
	group, ctx := parallel.NewGroup(ctx)
	return &Client{following: group, stop: stop, opening: make(chan struct{}, 1), config: clientv3.Config{
		Context: ctx, Endpoints: c.Endpoints, TLS: c.TLS, Username: c.Username, Password: c.Password,
		DialTimeout: dialTimeout, DialKeepAliveTime: dialKeepAlive, DialKeepAliveTimeout: dialTimeout, Logger: zap.NewNop(),
	}}
}

// open returns etcd's client. A new one authenticates first, so a server that is away, or a wrong password, are errors of each
// request, and not of New.
func (c *Client) open(ctx context.Context) (*clientv3.Client, error) {
	if etcd := c.etcd.Load(); etcd != nil {
		return etcd, nil
	}
	select {
	case c.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, explain(ctx.Err())
	}
	defer func() { <-c.opening }()
	if etcd := c.etcd.Load(); etcd != nil {
		return etcd, nil
	}
	etcd, err := clientv3.New(c.config)
	if err != nil {
		return nil, explain(err)
	}
	c.etcd.Store(etcd)
	c.following.Run(c.config.Context, func(ctx context.Context) { c.followConnections(ctx, etcd.ActiveConnection()) })
	return etcd, nil
}

// Close ends all connections. It is called once, after all requests.
func (c *Client) Close() {
	c.stop()
	_ = c.following.Wait()
	if etcd := c.etcd.Load(); etcd != nil {
		_ = etcd.Close()
	}
}

func (c *Client) followConnections(ctx context.Context, conn *grpc.ClientConn) {
	for state := conn.GetState(); conn.WaitForStateChange(ctx, state); {
		was := state
		if state = conn.GetState(); was == connectivity.Ready || state == connectivity.Ready {
			c.connected.Send()
		}
	}
}

// Engine implements kv.Store.
func (c *Client) Engine() kv.Engine {
	return kv.Engine{Name: "etcd", Put: "etcdctl put", Delete: "etcdctl del", Look: "etcdctl endpoint health", Access: "this host's credentials"}
}

// explanation is an error of etcd in words for people.
type explanation struct{ error }

func (e explanation) Error() string {
	text := e.error.Error()
	if s, is := status.FromError(e.error); is {
		text = s.Message()
	}
	return "etcd: " + strings.TrimPrefix(text, "etcdserver: ")
}

func (e explanation) Unwrap() error { return e.error }

func explain(err error) error { return explanation{err} }

func pairOf(store *mvccpb.KeyValue) kv.Pair {
	return kv.Pair{Key: string(store.Key), Value: store.Value, Index: uint64(store.ModRevision), Session: sessionOf(clientv3.LeaseID(store.Lease))}
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

// Get implements kv.Store.
func (c *Client) Get(ctx context.Context, key string, q kv.Query) (*kv.Pair, uint64, error) {
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
	etcd, err := c.open(ctx)
	if err != nil {
		return nil, 0, err
	}
	ctx, options := reading(ctx, q)
	r, err := etcd.Get(ctx, key, options...)
	if err != nil {
		return nil, 0, explain(err)
	}
	if len(r.Kvs) == 0 {
		return nil, uint64(r.Header.Revision), nil
	}
	pair := pairOf(r.Kvs[0])
	return &pair, uint64(r.Header.Revision), nil
}

// reading returns the context and the options of a read. A stale one is answered by any member from what it has. Other requests
// need a leader: a member without one then refuses them at once, and another one is asked.
func reading(ctx context.Context, q kv.Query, options ...clientv3.OpOption) (context.Context, []clientv3.OpOption) {
	if q.Stale {
		return ctx, append(options, clientv3.WithSerializable())
	}
	return clientv3.WithRequireLeader(ctx), options
}

// watch waits for a change after a version, and returns the newest one. It returns none if the keys are to be read: the time
// is over, or etcd can't tell, because its history is compacted, it may have gone back, or the watch's token is outdated.
//
// Watches share a stream, which keeps the token that it began with. Once that is not accepted, the next watch begins another one.
func (c *Client) watch(ctx context.Context, key string, q kv.Query, options ...clientv3.OpOption) (newest *clientv3.Event, err error) {
	etcd, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "ironvip-stream", strconv.FormatUint(c.stream.Load(), 10)))
	defer cancel()
	connected := c.connected.Next()
	over := time.NewTimer(q.Wait)
	defer over.Stop()
	changes := etcd.Watch(ctx, key, append(options, clientv3.WithRev(int64(q.After)+1), clientv3.WithCreatedNotify())...)
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
			case errors.Is(r.Err(), rpctypes.ErrInvalidAuthToken), errors.Is(r.Err(), rpctypes.ErrAuthOldRevision), errors.Is(r.Err(), rpctypes.ErrUserEmpty):
				c.stream.Add(1)
				return nil, nil
			case r.Err() != nil:
				return nil, explain(r.Err())
			case len(r.Events) > 0:
				return r.Events[len(r.Events)-1], nil
			}
		}
	}
}

// List implements kv.Store.
func (c *Client) List(ctx context.Context, prefix string, q kv.Query) (pairs []kv.Pair, index uint64, err error) {
	if q.After > 0 {
		if _, err := c.watch(ctx, prefix, q, clientv3.WithPrefix()); err != nil {
			return nil, 0, err
		}
	}
	return c.read(ctx, prefix, q)
}

// Level implements kv.Store.
func (c *Client) Level(ctx context.Context, prefix string) (names []string, index uint64, err error) {
	pairs, index, err := c.read(ctx, prefix, kv.Query{}, clientv3.WithKeysOnly())
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
func (c *Client) read(ctx context.Context, prefix string, q kv.Query, options ...clientv3.OpOption) (pairs []kv.Pair, index uint64, err error) {
	etcd, err := c.open(ctx)
	if err != nil {
		return nil, 0, err
	}
	ctx, options = reading(ctx, q, append(options, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(page))...)
	for from, more := prefix, true; more; from = pairs[len(pairs)-1].Key + "\x00" {
		if index > 0 {
			options = append(options, clientv3.WithRev(int64(index)))
		}
		r, err := etcd.Get(ctx, from, options...)
		if err != nil {
			return nil, 0, explain(err)
		}
		if index == 0 {
			index = uint64(r.Header.Revision)
		}
		for _, pair := range r.Kvs {
			pairs = append(pairs, pairOf(pair))
		}
		if more = r.More && len(r.Kvs) > 0; !more {
			break
		}
	}
	return pairs, index, nil
}

// NewSession implements kv.Store. A lease has no name, and etcd no delay of locks.
func (c *Client) NewSession(ctx context.Context, _ string, ttl, _ time.Duration) (string, error) {
	etcd, err := c.open(ctx)
	if err != nil {
		return "", err
	}
	r, err := etcd.Grant(clientv3.WithRequireLeader(ctx), int64(ttl/time.Second))
	if err != nil {
		return "", explain(err)
	}
	return sessionOf(r.ID), nil
}

// Renew implements kv.Store.
func (c *Client) Renew(ctx context.Context, id string) (alive bool, err error) {
	etcd, err := c.open(ctx)
	if err != nil {
		return false, err
	}
	if _, err = etcd.KeepAliveOnce(clientv3.WithRequireLeader(ctx), leaseOf(id)); errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false, nil
	} else if err != nil {
		return false, explain(err)
	}
	return true, nil
}

// EndSession implements kv.Store.
func (c *Client) EndSession(ctx context.Context, id string) error {
	etcd, err := c.open(ctx)
	if err != nil {
		return err
	}
	if _, err := etcd.Revoke(clientv3.WithRequireLeader(ctx), leaseOf(id)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return explain(err)
	}
	return nil
}
