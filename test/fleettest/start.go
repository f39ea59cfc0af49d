package fleettest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Host is a running tree.
type Host struct {
	*fleet.Tree
	*Client // nil on a real server
	stop    context.CancelFunc
	done    chan struct{}
	err     error // of the tree's Run
	once    sync.Once
}

// Start runs a tree of these folders for the host of that name, waits until it
// has read the store, and ends it with the test. Prepare, when not nil, is
// called before it runs: for collections.
func (m *Memory) Start(t testing.TB, host string, folders []string, prepare func(*fleet.Tree)) *Host {
	t.Helper()
	h := m.Run(t, fleet.Options{Node: host, Folders: folders}, prepare)
	for _, name := range folders {
		select {
		case <-h.Folder(name).Ready():
		case <-time.After(time.Minute):
			t.Fatalf("%s: folder %s is not ready after a minute: %s", host, name, h.Stale())
		}
	}
	return h
}

// Run is Start with options, and doesn't wait. It fills in omitted options.
func (m *Memory) Run(t testing.TB, o fleet.Options, prepare func(*fleet.Tree)) *Host {
	t.Helper()
	client := m.Client(o.Node)
	if o.KV == nil {
		o.KV = client
	}
	h := RunTree(t, o, prepare)
	h.Client = client
	return h
}

// RunOn is Run on a real Consul.
func RunOn(t testing.TB, server consul.Config, o fleet.Options, prepare func(*fleet.Tree)) *Host {
	t.Helper()
	store, err := consul.New(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	o.KV = store
	return RunTree(t, o, prepare)
}

// RunTree runs a tree and ends it with the test.
func RunTree(t testing.TB, o fleet.Options, prepare func(*fleet.Tree)) *Host {
	t.Helper()
	if o.Clock == nil {
		o.Clock = &table.Clock{}
	}
	if o.Identity.ID == "" && o.Cache != nil {
		var err error
		if o.Identity, err = membership.LoadIdentity(o.Cache); err != nil {
			t.Fatal(err)
		}
	}
	tree := fleet.New(o)
	if prepare != nil {
		prepare(tree)
	}
	ctx, stop := context.WithCancel(context.Background())
	h := &Host{Tree: tree, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		h.err = tree.Run(ctx)
	}()
	t.Cleanup(h.End)
	return h
}

// End ends the tree gracefully and waits for it.
func (h *Host) End() {
	h.once.Do(h.stop)
	<-h.done
}

// Ended returns the error of the tree's Run, or nil while it runs.
func (h *Host) Ended() error {
	select {
	case <-h.done:
		return h.err
	default:
		return nil
	}
}

// Problems lists at most 100 of the tree's problems, and one that counts the rest.
func (h *Host) Problems() []vip.Problem {
	first, all := h.FirstProblems(100)
	if more := all - len(first); more > 0 {
		first = append(first, vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf("%d more keys can't be read", more)})
	}
	return first
}
