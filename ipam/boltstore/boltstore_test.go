package boltstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/storetest"
)

// disk is the state file's bucket, with a switch for its writes.
type disk struct {
	*store.Bucket[ipam.Lease]
	db   *store.DB
	full bool
}

func (d *disk) Batch(fill func(*store.Tx[ipam.Lease])) error {
	if d.full {
		return fmt.Errorf("%w: no space left on device", store.ErrUnavailable)
	}
	return d.Bucket.Batch(fill)
}

func TestStore(t *testing.T) {
	disks := map[ipam.Store]*disk{}
	openAt := func(t *testing.T, path string) ipam.Store {
		db := must.Get(store.Open(path))(t)
		t.Cleanup(func() { _ = db.Close() })
		d := &disk{Bucket: store.NewBucket[ipam.Lease](db, bucketName), db: db}
		s := must.Get(open(d))(t)
		disks[s] = d
		return s
	}
	storetest.Run(t, func(t *testing.T) ipam.Store { return openAt(t, filepath.Join(t.TempDir(), "ironvip.db")) },
		storetest.Reopen(func(t *testing.T, s ipam.Store) ipam.Store {
			must.Succeed(t, disks[s].db.Close())
			return openAt(t, disks[s].db.Path())
		}),
		storetest.Fault(func(t *testing.T, s ipam.Store) func() {
			disks[s].full = true
			return func() { disks[s].full = false }
		}))
}

// A lease that can't be read is an error: its address could otherwise be allocated again.
func TestUnreadableLeaseIsAnError(t *testing.T) {
	for name, write := range map[string]func(*store.DB) error{
		"under another's name": func(db *store.DB) error {
			return store.NewBucket[ipam.Lease](db, bucketName).Put("192.0.2.9", storetest.Lease(1, "a"))
		},
		"of another shape": func(db *store.DB) error {
			return store.NewBucket[map[string]int](db, bucketName).Put("192.0.2.1", map[string]int{"state": 1})
		},
	} {
		db := must.Get(store.Open(filepath.Join(t.TempDir(), "ironvip.db")))(t)
		must.Succeed(t, write(db))
		if _, err := New(db); err == nil || !strings.Contains(err.Error(), "192.0.2.") {
			t.Errorf("%s: %v, want an error that names the lease", name, err)
		}
		_ = db.Close()
	}
}

const childEnv = "IRONVIP_BOLTSTORE_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// nth is the lease that the child makes in its nth step.
func nth(n int) ipam.Lease {
	l := storetest.Lease(0, fmt.Sprintf("s%d", n))
	l.Resource.Addr = netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
	return l
}

// writeUntilKilled commits leases in batches of several sizes, removes some,
// and prints each number once its commit was acknowledged.
func writeUntilKilled(path string) error {
	db, err := store.Open(path)
	if err != nil {
		return err
	}
	s, err := New(db)
	if err != nil {
		return err
	}
	for n := 0; ; {
		var ops []ipam.Op
		var said strings.Builder
		for range 1 + n%7 {
			l := nth(n)
			ops = append(ops, ipam.Op{New: &l})
			fmt.Fprintf(&said, "+%d\n", n)
			if n%5 == 4 {
				gone := nth(n - 4)
				ops = append(ops, ipam.Op{Old: &gone})
				fmt.Fprintf(&said, "-%d\n", n-4)
			}
			n++
		}
		if err := s.Commit(context.Background(), ops); err != nil {
			return err
		}
		for _, op := range ops {
			if op.Err != nil {
				return op.Err
			}
		}
		if _, err := io.WriteString(os.Stdout, said.String()); err != nil {
			return err
		}
	}
}

func TestKilledWhileWriting(t *testing.T) { killWhileWriting(t, 1, 2) }

// killWhileWriting kills a writer at random times. Every acknowledged lease is there then, and every
// removed one is not.
func killWhileWriting(t *testing.T, seed uint64, kills int) {
	random := rand.New(rand.NewPCG(seed, 0))
	total := 0
	for range kills {
		path := filepath.Join(t.TempDir(), "ironvip.db")
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), childEnv+"="+path, "GORACE=atexit_sleep_ms=0")
		var complaint strings.Builder
		cmd.Stderr = &complaint
		out := must.Get(cmd.StdoutPipe())(t)
		must.Succeed(t, cmd.Start())
		acknowledged := map[int]bool{} // false: removed
		lines := bufio.NewScanner(out)
		killAfter := random.IntN(300)
		var killer *time.Timer
		for lines.Scan() {
			var sign rune
			var n int
			if _, err := fmt.Sscanf(lines.Text(), "%c%d", &sign, &n); err != nil {
				break // cut off by the kill
			}
			acknowledged[n] = sign == '+'
			if killer == nil && len(acknowledged) > killAfter {
				killer = time.AfterFunc(time.Duration(random.IntN(3_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
			}
		}
		_ = cmd.Wait()
		must.AtMost(t, complaint.Len(), 0, "the writer ended by itself: %s", complaint.String())
		db, err := store.Open(path)
		must.Succeed(t, err, "after a kill at %d", len(acknowledged))
		s := must.Get(New(db))(t)
		changes := storetest.Leases(t, s)
		there := map[ipam.Resource]ipam.Lease{}
		for _, c := range changes {
			there[c.Resource] = *c.Lease
		}
		last := 0
		for n := range acknowledged {
			last = max(last, n)
		}
		for n, held := range acknowledged {
			want := nth(n)
			got, ok := there[want.Resource]
			// The commit that the kill cut off may have removed one of the last.
			maybeRemoved := n%5 == 0 && n >= last-3
			switch {
			case held && !ok && !maybeRemoved:
				t.Errorf("lease %d was acknowledged and is gone", n)
			case held && ok && !got.Equal(want):
				t.Errorf("lease %d was acknowledged and is %+v", n, got)
			case !held && ok:
				t.Errorf("lease %d was removed and is there", n)
			}
		}
		total += len(acknowledged)
		_ = db.Close()
	}
	t.Logf("%d acknowledged leases over %d kills", total, kills)
}
