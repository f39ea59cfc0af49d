package overrides

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// lab is a fleet of hosts with journals. Each host has two usable backends.
type lab struct {
	*fleettest.Memory
	t     *testing.T
	dbs   map[string]*store.DB
	disks map[string]*writes // of the journals, since the last start of their host
	hosts map[string]*host
}

func inLab(t *testing.T, f func(t *testing.T, l *lab)) {
	bubble.Test(t, func(t *testing.T) {
		l := &lab{Memory: fleettest.NewMemory(), t: t, dbs: map[string]*store.DB{}, disks: map[string]*writes{}, hosts: map[string]*host{}}
		defer func() {
			for name, h := range l.hosts {
				h.stop()
				h.tree.End()
				l.dbs[name].Close()
			}
		}()
		f(t, l)
	})
}

// start starts a host, or starts it again with its journal.
func (l *lab) start(name string) *host {
	l.t.Helper()
	if l.dbs[name] == nil {
		db := must.Get(store.Open(filepath.Join(l.t.TempDir(), "ironvip.db")))(l.t)
		l.dbs[name] = db
	}
	l.disks[name] = &writes{Bucket: store.NewBucket[Override](l.dbs[name], "pending states")}
	var journal *registry.Journal[Override]
	tree := l.Run(l.t, fleet.Options{Node: name, Folders: []string{Folder}, Cache: l.dbs[name]}, func(tree *fleet.Tree) {
		var err error
		if journal, err = registry.NewJournal(Shared(tree), l.disks[name]); err != nil {
			l.t.Fatal(err)
		}
	})
	h := newHost(l.t, name, &table.Clock{}, Options{Store: journal, Fleet: tree.Tree})
	h.tree = tree
	h.serves("10.0.0.1", "10.0.0.2")
	h.start()
	l.hosts[name] = h
	synctest.Wait()
	return h
}

func (l *lab) restart(name string) *host {
	l.hosts[name].stop()
	l.hosts[name].tree.End()
	return l.start(name)
}

// away cuts a host off from the fleet's store, or ends that.
func (h *host) away(is bool) {
	h.tree.Client.SetDown(is)
	time.Sleep(2 * time.Minute)
	synctest.Wait()
}

func (h *host) local() (out []string) {
	for _, o := range h.Local() {
		out = append(out, o.Backend.ID()+" "+o.State.String())
	}
	return out
}

// all expects the same overrides on every host, and none that is only local.
func (l *lab) all(when, want string) {
	l.t.Helper()
	time.Sleep(time.Minute)
	for _, h := range l.hosts {
		h.expect(when, want)
		got := h.local()
		expect.Empty(l.t, got, "%s: %s has %q locally", when, h.name, got)
	}
}

// An override that is set while the fleet's store is away is in effect on that host at once, also
// after a restart, and on all hosts when the store is back.
func TestSetWhileAway(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		a, b := l.start("a"), l.start("b")
		b.set("10.0.0.2", vip.Maint)
		l.all("before", "10.0.0.2 maint")
		a.away(true)
		done, err := a.Set(t.Context(), request("10.0.0.2", vip.Ready))
		if err != nil || !done.Local {
			t.Fatalf("ready: %+v, %v", done, err)
		}
		if done, err = a.Set(t.Context(), request("10.0.0.1", vip.Drain)); err != nil || !done.Local {
			t.Fatalf("drain: %+v, %v", done, err)
		}
		a.expect("on the host that is away", "10.0.0.1 drain")
		if row, _, _ := a.table.Get(vip.OverrideKey{BackendKey: backend("10.0.0.1")}); !row.Local || row.Author != "root" {
			t.Errorf("%+v", row)
		}
		if _, err := a.Set(t.Context(), request("10.0.0.2", vip.Drain)); err == nil {
			t.Error("the last usable backend was drained without force")
		}
		b.expect("on the other", "10.0.0.2 maint")
		l.SetDown(true)
		a = l.restart("a")
		time.Sleep(time.Minute)
		a.expect("after a restart", "10.0.0.1 drain")
		expect.SameList(t, a.local(), []string{"10.0.0.1 drain", "10.0.0.2 ready"}, "local after a restart")
		l.SetDown(false)
		time.Sleep(2 * time.Minute)
		l.all("after the merge", "10.0.0.1 drain")
		l.restart("a")
		l.all("after another restart", "10.0.0.1 drain")
		if got := b.messages(); !slices.Contains(got, "set to drain by root through node a") || !slices.Contains(got, "set to ready by root through node a") {
			t.Errorf("events of b: %q", got)
		}
	})
}

// Of two decisions about one backend, the later one wins, whichever host was away, and also if a
// decision was to end the override.
func TestLaterDecisionWins(t *testing.T) {
	for _, c := range []struct{ before, away, other vip.State }{
		{vip.Ready, vip.Drain, vip.Maint},
		{vip.Ready, vip.Maint, vip.Drain},
		{vip.Drain, vip.Maint, vip.Ready},
		{vip.Drain, vip.Ready, vip.Maint},
		{vip.Drain, vip.Drain, vip.Ready},
		{vip.Maint, vip.Ready, vip.Drain},
	} {
		for _, awayIsLater := range []bool{false, true} {
			inLab(t, func(t *testing.T, l *lab) {
				a, b := l.start("a"), l.start("b")
				if c.before != vip.Ready {
					a.set("10.0.0.1", c.before)
				}
				time.Sleep(time.Second)
				a.away(true)
				first, then, want := func() { a.set("10.0.0.1", c.away) }, func() { b.set("10.0.0.1", c.other) }, c.other
				if awayIsLater {
					first, then, want = then, first, c.away
				}
				first()
				time.Sleep(time.Second)
				then()
				time.Sleep(time.Minute)
				a.away(false)
				if want == vip.Ready {
					l.all(c.away.String()+" and "+c.other.String(), "")
				} else {
					l.all(c.away.String()+" and "+c.other.String(), "10.0.0.1 "+want.String())
				}
			})
		}
	}
}

// Two hosts that are away merge in any order.
func TestTwoHostsMerge(t *testing.T) {
	for _, order := range []string{"ab", "ba"} {
		inLab(t, func(t *testing.T, l *lab) {
			for _, name := range []string{"a", "b", "c"} {
				l.start(name)
			}
			a, b := l.hosts["a"], l.hosts["b"]
			a.away(true)
			b.away(true)
			a.set("10.0.0.1", vip.Drain)
			time.Sleep(time.Second)
			b.set("10.0.0.1", vip.Maint)
			time.Sleep(time.Second)
			a.set("10.0.0.2", vip.Ready)
			for _, name := range strings.Split(order, "") {
				l.hosts[name].away(false)
			}
			l.all(order, "10.0.0.1 maint")
		})
	}
}

// An override that expires while its host is away ends there at once, and everywhere after the
// merge.
func TestLocalOverrideExpires(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		a, b := l.start("a"), l.start("b")
		a.away(true)
		a.setFor("10.0.0.1", vip.Drain, time.Hour)
		a.expect("before", "10.0.0.1 drain")
		time.Sleep(time.Hour)
		a.expect("expired", "")
		a.away(false)
		l.all("after the merge", "")
		b.set("10.0.0.1", vip.Drain)
		l.all("set again", "10.0.0.1 drain")
	})
}

// A crash between the write to the fleet's store and the end of the pending state changes nothing:
// the value is merged again, and does not replace a later one.
func TestMergeIsRepeatable(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		a, b := l.start("a"), l.start("b")
		a.away(true)
		a.set("10.0.0.1", vip.Drain)
		pending := a.journal.Pending()
		a.away(false)
		l.all("merged", "10.0.0.1 drain")
		b.set("10.0.0.1", vip.Maint)
		time.Sleep(time.Second)
		must.Succeed(t, store.NewBucket[Override](l.dbs["a"], "pending states").Put(pending[0].Key, pending[0].Value))
		l.restart("a")
		l.all("merged again", "10.0.0.1 maint")
	})
}

// A value that was merged while the disk could not be written stays there. It is deleted when the
// disk works again, after a pause or with the next change, and is not merged again by a restart.
func TestMergeRetriesTheDisk(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		a, b := l.start("a"), l.start("b")
		onDisk := func() int {
			t.Helper()
			synctest.Wait()
			all := must.Get(l.disks["a"].All())(t)
			expect.Equal(t, a.journal.HasGarbage(), (len(all) > 0), "%d values on the disk, garbage", len(all))
			return len(all)
		}
		for _, retry := range []struct {
			what string
			do   func()
		}{
			{"after the pause", func() { time.Sleep(sweepRetry) }},
			{"with the next change", func() { a.set("10.0.0.1", vip.Maint) }},
		} {
			a.away(true)
			a.set("10.0.0.1", vip.Drain)
			l.disks["a"].fail(true)
			a.away(false)
			a.expect("merged", "10.0.0.1 drain")
			b.expect("merged", "10.0.0.1 drain")
			if n := onDisk(); n != 1 || len(a.local()) != 0 {
				t.Fatalf("%s: %d values on a full disk, %q are local", retry.what, n, a.local())
			}
			l.disks["a"].fail(false)
			if n := onDisk(); n != 1 {
				t.Errorf("%s: %d values on the disk before", retry.what, n)
			}
			retry.do()
			if n := onDisk(); n != 0 {
				t.Errorf("%s: %d values on the disk", retry.what, n)
			}
			b.set("10.0.0.1", vip.Ready)
			l.restart("a")
			a = l.hosts["a"]
			l.all(retry.what+" and after a restart", "")
		}
	})
}
