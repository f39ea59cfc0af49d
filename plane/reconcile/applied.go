package reconcile

import (
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Applied is a row of the applied table: the result of the latest attempt at one key. A desired key without a row has
// not been tried yet.
type Applied[V any] struct {
	// Tried is the desired row that was tried, shared; for a removal the last one.
	// A stray that was never desired has a row without a revision.
	Tried   *table.Row[V]
	At      vip.Instant
	Problem *vip.Problem // nil: the Target has it
	// Warning is set while the key is contested (vip.CodeContested). The Target has the row at the moment, if Problem is nil.
	Warning *vip.Problem
}

// Stats are totals and the current state of a Reconciler.
type Stats struct {
	Synced       bool      // the first full pass is done
	Wanted       int       // rows in the desired table
	Failing      int       // keys with a pending retry, or that the Target rejects
	DesiredRev   uint64    // newest revision of the desired table
	AppliedRev   uint64    // all changes up to here have been tried; removals only when Synced
	Writes       uint64    // updates passed to the Target
	Adopted      uint64    // keys that already matched at the start
	DriftRepairs uint64    // keys found changed by another program
	Contested    int       // keys that another program changes repeatedly
	LastResync   time.Time // time of the last full read of the Target; zero: never
	TargetError  string    // why the whole Target is unavailable; "" if it is available
	Unclean      bool      // a Cleaner has something to do
	CleanError   string    // why the last Clean failed; "" if it succeeded
	LastRound    time.Time // time of the loop's last round, for the watchdog
}

// Difference is one key that differs from the desired state.
type Difference[K comparable, V any] struct {
	Key    K
	Want   *V // nil: not desired
	Have   *V // nil: missing
	Damage []string
}
