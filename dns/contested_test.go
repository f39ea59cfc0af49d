package dns

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// openStore returns the contested names in a state file.
func openStore(t *testing.T) *store.Bucket[vip.ServiceKey] {
	db := must.Get(store.Open(filepath.Join(t.TempDir(), store.FileName)))(t)
	t.Cleanup(func() { _ = db.Close() })
	return store.NewBucket[vip.ServiceKey](db, contestedBucket)
}

const contestedBucket = "contested names"

// awaitStored waits until a store has the names with their winners.
func awaitStored(t *testing.T, s ContestedStore, want map[string]vip.ServiceKey) {
	t.Helper()
	wait.For(t, "the stored names", func() error {
		if all, err := s.All(); err != nil || !maps.Equal(all, want) {
			return fmt.Errorf("%v, %v; want %v", all, err, want)
		}
		return nil
	})
}

// shop adds a service that wants shop.example.com, with a lease.
func (w *world) shop(name string, since int, vip string) {
	w.Service(name, "shop.example.com", name+".example.com")
	w.Allocate(name, since, vip)
	w.await(name+".example.com", "NOERROR "+vip)
}

// After a restart, a contested name is not answered for a service that has lost it, while the source of
// the winner is silent: also with other settings. The winner is answered at once.
func TestContestedNameAfterRestart(t *testing.T) {
	s := openStore(t)
	w := newWorldWith(t, s, nil)
	w.shop("young", 2, "10.64.0.2")
	w.shop("old", 1, "10.64.0.1")
	w.await("shop.example.com", "NOERROR 10.64.0.1")
	if all, err := s.All(); err != nil || len(all) > 0 {
		t.Errorf("before every source has listed its services, %v is stored; %v", all, err)
	}
	w.Listed()
	stored := map[string]vip.ServiceKey{"shop.example.com": key("old")}
	awaitStored(t, s, stored)
	w.end()

	w = newWorldWith(t, s, nil)
	w.Lease("10.64.0.1", 1, ipam.Held, "old")
	w.Lease("10.64.0.2", 2, ipam.Held, "young")
	w.shop("young", 2, "10.64.0.2")
	w.await("old.vip.internal", "NOERROR 10.64.0.1")
	w.check("shop.example.com", "SERVFAIL")
	expect.Equal(t, must.Get(w.Explain("shop.example.com", dns.TypeA))(t).Why, zone.NotDecided)
	undecided := func() {
		t.Helper()
		want := zone.Conflict{ConflictKey: zone.ConflictKey{Name: "shop.example.com", Service: key("young")}, Winner: key("old"), Undecided: true}
		wait.For(t, "the conflict", func() error { // the zone has it a moment before the table
			if c, _, ok := w.Conflicts().Get(want.ConflictKey); !ok || c != want {
				return fmt.Errorf("%+v, %v", c, ok)
			}
			return nil
		})
		if n := w.NamesOf(key("young"))[2]; n.Name != want.Name || !n.Lost || !n.Undecided || n.Winner != want.Winner {
			t.Errorf("name %+v", n)
		}
	}
	undecided()
	changed := settings()
	changed.TTL = time.Second
	must.Succeed(t, w.Reconfigure(changed))
	w.check("shop.example.com", "SERVFAIL")
	undecided()
	w.shop("old", 1, "10.64.0.1")
	w.check("shop.example.com", "NOERROR 10.64.0.1")
	w.Listed()
	<-w.Synced()
	w.check("shop.example.com", "NOERROR 10.64.0.1")
	awaitStored(t, s, stored)
}

// When the winner's source is no longer waited for, the other service has the name, and it is no longer
// stored. It is again when the source is back.
func TestContestedNameIsReleased(t *testing.T) {
	s := openStore(t)
	stored := map[string]vip.ServiceKey{"shop.example.com": key("old"), "gone.example.com": key("old")}
	must.Succeed(t, s.Write(stored, nil))
	w := newWorldWith(t, s, nil)
	w.shop("young", 2, "10.64.0.2")
	w.check("shop.example.com", "SERVFAIL")
	w.Listed() // by a timeout
	w.await("shop.example.com", "NOERROR 10.64.0.2")
	wait.Until(t, "the end of the conflict", func() bool { return w.Conflicts().Len() == 0 })
	awaitStored(t, s, nil)
	w.shop("old", 1, "10.64.0.1")
	w.await("shop.example.com", "NOERROR 10.64.0.1")
	awaitStored(t, s, map[string]vip.ServiceKey{"shop.example.com": key("old")})
}

// A stored winner that can't be read holds its name for nobody. When every source has listed its
// services, the name is stored again, or removed if nobody contests it, and the next start finds nothing
// wrong.
func TestUnreadableContestedNames(t *testing.T) {
	dir := t.TempDir()
	open := func() (*store.DB, *store.Bucket[vip.ServiceKey]) {
		db := must.Get(store.Open(filepath.Join(dir, store.FileName)))(t)
		return db, store.NewBucket[vip.ServiceKey](db, contestedBucket)
	}
	db, s := open()
	if err := errors.Join(store.NewBucket[int](db, contestedBucket).Write(map[string]int{"shop.example.com": 1, "gone.example.com": 2}, nil),
		s.Put("fine.example.com", key("old"))); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	w := newWorldWith(t, s, slog.New(slog.NewTextHandler(&log, nil)))
	w.shop("young", 2, "10.64.0.2")
	w.check("shop.example.com", "SERVFAIL")
	w.shop("old", 1, "10.64.0.1")
	w.check("shop.example.com", "SERVFAIL")
	w.Listed()
	w.await("shop.example.com", "NOERROR 10.64.0.1")
	stored := map[string]vip.ServiceKey{"shop.example.com": key("old")}
	awaitStored(t, s, stored)
	w.end()
	if got := log.String(); strings.Count(got, "level=ERROR") != 1 || !strings.Contains(got, "contested names unreadable; they get SERVFAIL until") || !strings.Contains(got, "names=2") {
		t.Errorf("the log: %s", got)
	}
	must.Succeed(t, db.Close())

	db, s = open()
	defer db.Close()
	log.Reset()
	newWorldWith(t, s, slog.New(slog.NewTextHandler(&log, nil))).end()
	expect.False(t, strings.Contains(log.String(), "unreadable"), "the log of the next start: %s", log.String())
}

// An end before every source has listed its services changes nothing that is stored.
func TestContestedNamesSurviveAnEarlyEnd(t *testing.T) {
	s := openStore(t)
	stored := map[string]vip.ServiceKey{"shop.example.com": key("old")}
	must.Succeed(t, s.Write(stored, nil))
	w := newWorldWith(t, s, nil)
	w.shop("young", 2, "10.64.0.2")
	w.shop("younger", 3, "10.64.0.3")
	w.end()
	if all, err := s.All(); err != nil || !maps.Equal(all, stored) {
		t.Errorf("%v, %v", all, err)
	}
}

// Names are stored also while nobody answers them, and those of a former domain are removed.
func TestContestedNamesFollowTheSettings(t *testing.T) {
	s := openStore(t)
	w := newWorldWith(t, s, nil)
	w.Service("a", "b.vip.internal", "b.vip.test")
	w.Allocate("a", 1, "10.64.0.1")
	w.Service("b")
	w.Allocate("b", 2, "10.64.0.2")
	w.Listed()
	w.Granted()
	awaitStored(t, s, map[string]vip.ServiceKey{"b.vip.internal": key("a")})
	off := settings()
	off.Servers = nil
	must.Succeed(t, w.Reconfigure(off))
	off.Domain = "vip.test"
	must.Succeed(t, w.Reconfigure(off))
	awaitStored(t, s, map[string]vip.ServiceKey{"b.vip.test": key("a")})
	w.Allocate("b", 0, "10.64.0.2") // without a lease
	w.Allocate("a", 0, "10.64.0.1")
	w.Service("c", "b.vip.test")
	w.Allocate("c", 1, "10.64.0.3")
	awaitStored(t, s, map[string]vip.ServiceKey{"b.vip.test": key("c")})
}

// writes is a ContestedStore that counts.
type writes struct {
	mu     sync.Mutex
	stored map[string]vip.ServiceKey
	calls  int // of Write
	names  int // that were written and removed
}

func (w *writes) All() (map[string]vip.ServiceKey, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.stored), nil
}

func (w *writes) Write(put map[string]vip.ServiceKey, remove []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	w.names += len(put) + len(remove)
	maps.Copy(w.stored, put)
	for _, name := range remove {
		delete(w.stored, name)
	}
	return nil
}

// A change of a contested name writes this name only, and other changes write nothing. The start writes all names once.
func TestWritesOfContestedNames(t *testing.T) {
	const services = 200
	s := &writes{stored: map[string]vip.ServiceKey{"gone.example.com": key("gone")}}
	for i := 1; i < services; i++ {
		s.stored[fmt.Sprintf("h%d.example.com", i)] = key(fmt.Sprint("old", i))
	}
	wrote := func(what string, calls, names int, want string, winner vip.ServiceKey) {
		t.Helper()
		wait.For(t, what, func() error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.names != names || s.stored[want] != winner || calls > 0 && s.calls > calls {
				return fmt.Errorf("%d writes of %d names, %s is %v", s.calls, s.names, want, s.stored[want])
			}
			s.calls, s.names = 0, 0
			return nil
		})
	}
	w := newWorldWith(t, s, nil)
	for i := range services {
		name := fmt.Sprintf("h%d.example.com", i)
		for since, kind := range []string{"old", "new"} {
			w.Service(fmt.Sprint(kind, i), name)
			w.Allocate(fmt.Sprint(kind, i), 1+since, fmt.Sprintf("10.64.%d.%d", since, i))
		}
	}
	last := fmt.Sprint("new", services-1)
	w.await(last+".vip.internal", fmt.Sprint("NOERROR 10.64.1.", services-1))
	w.Listed()
	w.Granted()
	wrote("the start", 0, services+1, "h0.example.com", key("old0")) // all of them, and one gone
	w.Allocate("new0", 2, "10.64.2.0")
	w.Allocate("old0", 3, "10.64.0.0")
	wrote("another winner", 1, 1, "h0.example.com", key("new0"))
	w.Services.Delete(key("new0"))
	wrote("an end", 1, 1, "h0.example.com", vip.ServiceKey{})
}
