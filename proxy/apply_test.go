package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// many returns updates that open n frontends.
func many(t *testing.T, n int) (batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) {
	t.Helper()
	a := tcpBackend(t, "127.0.0.1", named("a"))
	for i := range n {
		key := freeKey(t, fmt.Sprintf("127.96.0.%d", i+1), vip.TCP)
		batch = append(batch, reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: key, New: onVIP(key, vip.RoundRobin, a)})
	}
	return batch
}

// All new frontends of a batch are open when Apply returns. A frontend that can't be opened has an
// error.
func TestManyAtOnce(t *testing.T) {
	p := newTarget(t, Options{})
	batch := many(t, 40)
	taken := must.Get(net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", batch[17].Key.Port)))(t)
	defer taken.Close()
	must.Succeed(t, p.Apply(context.Background(), batch))
	for i, u := range batch {
		var problem vip.Problem
		switch {
		case i == 17 && (!errors.As(u.Err, &problem) || !strings.Contains(problem.Message, fmt.Sprintf("another process holds 0.0.0.0:%d/tcp", u.Key.Port))):
			t.Errorf("a taken port: %v", u.Err)
		case i != 17 && u.Err != nil:
			t.Errorf("%s: %v", u.Key, u.Err)
		case i != 17 && who(t, u.Key) != "a":
			t.Errorf("%s is not served", u.Key)
		}
	}
	expect.Equal(t, p.Stats().Listeners, len(batch)-1, "listeners")
}

// A canceled Apply opens nothing.
func TestManyCutShort(t *testing.T) {
	p := newTarget(t, Options{})
	batch := many(t, 10)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	must.Is(t, p.Apply(ctx, batch), context.Canceled)
	for _, u := range batch {
		wantNobody(t, u.Key)
	}
}

// A frontend of a batch may use what another one of the batch releases. An address on our device
// remains for it.
func TestOneTakesWhatAnotherGivesUp(t *testing.T) {
	p := newTarget(t, Options{})
	a := tcpBackend(t, "127.0.0.1", named("a"))
	old := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(old, vip.RoundRobin, a))
	next := freeKey(t, "127.96.0.1", vip.TCP)
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{
		{Key: old, Old: onVIP(old, vip.RoundRobin, a)},
		{Key: next, New: onVIP(next, vip.RoundRobin, a)},
	}
	if err := p.Apply(context.Background(), batch); err != nil || batch[0].Err != nil || batch[1].Err != nil {
		t.Fatal(err, batch[0].Err, batch[1].Err)
	}
	who(t, next)
	wantNobody(t, old)
}

func wantNobody(t *testing.T, key vip.FrontendKey) {
	t.Helper()
	if c, err := net.Dial("tcp", key.AddrPort().String()); err == nil {
		c.Close()
		t.Errorf("somebody listens on %s", key)
	}
}
