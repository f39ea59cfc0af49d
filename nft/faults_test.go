package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// faulty is a world with a reconciler's loop, and two services: one changes, and one stays.
type faulty struct {
	*world
	*planetest.Loop
	changes, stays vip.Frontend
	all            []vip.Endpoint
	fault          atomic.Pointer[fault]
	faults         atomic.Int64 // number of the next writes that fail
	failed         atomic.Int64 // those that have failed
}

// fault stands in for a send. Its second result says whether it did.
type fault func(b []byte, send func([]byte) error) (error, bool)

// newFaulty returns a world in which f.fault stands in for sends.
func newFaulty(t *testing.T) *faulty {
	f := &faulty{world: newWorld(t)}
	f.Faults = func(b []byte, write bool, send func([]byte) error) error {
		if write && f.faults.Load() > 0 {
			if err, is := (*f.fault.Load())(b, send); is {
				f.faults.Add(-1)
				f.failed.Add(1)
				return err
			}
		}
		return send(b)
	}
	f.all = f.servers("tcp", false, 0)
	f.changes, f.stays = frontend("10.96.0.1", 80, vip.TCP, f.all[0]), frontend("10.96.0.2", 80, vip.TCP, f.all[0])
	f.Loop = planetest.NewLoop(t, f.planeIn, -1, &f.changes, &f.stays)
	f.Loop.Wait(f.Unapplied)
	return f
}

// fail lets the next writes fail.
func (f *faulty) fail(with fault, times int64) {
	f.fault.Store(&with)
	f.failed.Store(0)
	f.faults.Store(times)
}

// isTransaction reports whether a send is a transaction on our table.
func isTransaction(b []byte) bool {
	h, _, _, err := netlink.NextMessage(b)
	return err == nil && h.Type == unix.NFNL_MSG_BATCH_BEGIN && !bytes.Contains(b, []byte(filter.ScratchTable))
}

// withLastRefused returns a transaction with a last message that the kernel refuses: its attributes are none.
func withLastRefused(b []byte) []byte {
	b = slices.Clone(b)
	last := 0
	for at := 0; at < len(b); {
		h, _, rest, err := netlink.NextMessage(b[at:])
		if err != nil {
			panic(err)
		}
		if h.Type != unix.NFNL_MSG_BATCH_BEGIN && h.Type != unix.NFNL_MSG_BATCH_END {
			last = at
		}
		at = len(b) - len(rest)
	}
	const attributes = unix.SizeofNlMsghdr + 4
	binary.NativeEndian.PutUint16(b[last+attributes+2:], 0x3fff)
	return b
}

// A transaction fails, with each error that netlink knows, once and for a while. Meanwhile the table is the last good one
// and traffic goes on. When the fault ends, a retry repairs everything.
// Slow: traffic is asked for in each of many faults, and after them.
func TestFailedTransactions(t *testing.T) {
	f := newFaulty(t)
	held := must.Get(f.Client.Dial("tcp", f.stays.Key.AddrPort()))(t)
	failing := func(err error) fault {
		return func(b []byte, _ func([]byte) error) (error, bool) { return err, isTransaction(b) }
	}
	for _, c := range []struct {
		name  string
		fault fault
		lost  bool // the kernel has the transaction, but its answer is lost
	}{
		{name: "ENOBUFS", fault: failing(unix.ENOBUFS)},
		{name: "EBUSY", fault: failing(unix.EBUSY)},
		{name: "ENOSPC", fault: failing(unix.ENOSPC)},
		{name: "EINTR", fault: failing(unix.EINTR)},
		{name: "ENOMEM", fault: failing(unix.ENOMEM)},
		{name: "EPERM", fault: failing(unix.EPERM)},
		{name: "refused half-way", fault: func(b []byte, send func([]byte) error) (error, bool) {
			if !isTransaction(b) {
				return nil, false
			}
			return send(withLastRefused(b)), true
		}},
		{name: "answer lost", lost: true, fault: func(b []byte, send func([]byte) error) (error, bool) {
			if !isTransaction(b) {
				return nil, false
			}
			return errors.Join(send(b), netlink.ErrUnknown), true
		}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			for _, times := range []int64{1, 1 << 30} {
				before := f.list()
				f.fail(c.fault, times)
				changed := f.changes
				changed.Backends = f.all
				changed.Affinity = time.Minute // a class that the table doesn't have
				added := frontend("10.96.0.3", 80, vip.TCP, f.all[1])
				f.Set(&changed, &added)
				wait.Until(t, "transactions fail", func() bool { return f.failed.Load() >= min(times, 4) })
				if times > 1 {
					if now := f.list(); now != before && !c.lost {
						t.Errorf("a refused transaction left\n%s\nof\n%s", now, before)
					}
					for _, k := range []vip.FrontendKey{f.changes.Key, f.stays.Key} {
						if _, err := f.Client.Ask("tcp", k.AddrPort()); err != nil {
							t.Errorf("%s: %v", k, err)
						}
					}
					if !c.lost {
						f.WaitReported(added.Key, "nftables table")
					}
				}
				f.faults.Store(0)
				f.Loop.Wait(f.Unapplied)
				f.have = map[vip.FrontendKey]*vip.Frontend{changed.Key: &changed, added.Key: &added, f.stays.Key: &f.stays}
				f.check(newPlane(t, f.Director))
				f.asks(f.Client, added.Key, 80, 1)
				if _, err := held.Ask(); err != nil {
					t.Errorf("an open connection of another service: %v", err)
				}
				f.Delete(added.Key)
				f.Set(&f.changes)
				f.Loop.Wait(f.Unapplied)
			}
		})
	}
}

// The kernel lacks a module that only some rules need. The error names it, and the fix.
func TestMissingModuleIsNamed(t *testing.T) {
	f := newFaulty(t)
	for module, scheduler := range map[string]vip.Scheduler{"nft_numgen": vip.WeightedRoundRobin, "nft_hash": vip.SourceHash, "nft_nat": vip.RoundRobin} {
		name := strings.TrimPrefix(module, "nft_") + "\x00"
		attribute := append(binary.NativeEndian.AppendUint16(nil, uint16(4+len(name))), "\x01\x00"+name...) // NFTA_EXPR_NAME
		f.fail(func(b []byte, _ func([]byte) error) (error, bool) { return unix.ENOENT, bytes.Contains(b, attribute) }, 1<<30)
		changed := f.changes
		changed.Backends, changed.Scheduler = f.all, scheduler // new rules
		f.Set(&changed)
		f.WaitReported(changed.Key, module)
		f.WaitReported(changed.Key, "modprobe "+module)
		f.faults.Store(0)
		f.Loop.Wait(f.Unapplied)
		f.Set(&f.changes)
		f.Loop.Wait(f.Unapplied)
	}
}

// Other programs change the tables all the time. Every read is of one generation: an agent that starts meanwhile finds its
// table whole, and writes nothing.
func TestStartWhileOthersChangeTables(t *testing.T) {
	w := newWorld(t)
	var all []*vip.Frontend
	for i := range 50 {
		f := frontend("10.96.0.1", uint16(80+i), vip.TCP, vip.Endpoint{Addr: backendAt(1), Weight: 1}, vip.Endpoint{Addr: backendAt(2), Weight: 1})
		all = append(all, &f)
	}
	w.Create(t, all...)
	p := newPlane(t, w.Director)
	sends := 0
	p.Faults = func(b []byte, write bool, send func([]byte) error) error {
		err := send(b) // the kernel reads the first part of a dump now, and the others later
		if sends++; sends%2 == 0 && sends < 60 {
			w.run("nft add table ip theirs; nft delete table ip theirs")
		}
		return err
	}
	p.Wants(t, all...)
	expect.Equal(t, p.Stats().NFTMessages, 0, "messages")
}
