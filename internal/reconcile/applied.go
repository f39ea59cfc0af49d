package reconcile

import (
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Applied says how the newest attempt at one key went: the row of the applied
// table. A key that is wanted and has no row has not been tried yet.
type Applied[V any] struct {
	// Tried is the desired row that was tried, shared; of what is to go, the last
	// one that it had. What nobody ever wanted has one without a revision.
	Tried   *table.Row[V]
	At      vip.Instant  // when
	Problem *vip.Problem // nil: the Target has it
	// Warning says that somebody else keeps changing it in the Target, since
	// when and how often (vip.CodeContested). With it alone the Target has it for
	// the moment; while the next repair waits, Problem says the same.
	Warning *vip.Problem
}

// Stats are running totals and the present state of a Reconciler.
type Stats struct {
	Synced       bool      // the first full pass is done
	Wanted       int       // rows in the desired table
	Failing      int       // keys that wait for another try, or that the Target refuses
	DesiredRev   uint64    // newest revision of the desired table
	AppliedRev   uint64    // every change up to here has been tried; removals once Synced
	Writes       uint64    // updates handed to the Target
	Adopted      uint64    // keys found as wanted at the start and left alone
	DriftRepairs uint64    // keys found altered by somebody else
	Contested    int       // keys that somebody else alters again and again, whose repairs wait
	LastResync   time.Time // when the Target was last read whole; zero never
	TargetError  string    // why the Target as a whole is out of reach; "" when it isn't
	LastTurn     time.Time // when the loop last went round: food for a watchdog
}

// Difference is one key that the Target doesn't have as it is wanted.
type Difference[K comparable, V any] struct {
	Key    K
	Want   *V // nil: not wanted, but there
	Have   *V // nil: wanted, but not there
	Damage []string
}
