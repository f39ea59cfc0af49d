package ipvs

import (
	"fmt"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// item is one update of a batch on its way through Apply. Each part belongs to a
// phase. Later phases only read it, except for the result.
type item struct {
	request        // set by accept; checkOwnership may replace the mark
	service job    // set by accept; checkOwnership and program change it
	result  result // each phase adds to it
}

// request is what an update asks for, and what is recorded about its key.
type request struct {
	update  *updateOf
	key     vip.FrontendKey
	old     *vip.Frontend // the recorded frontend; nil: none
	repair  bool          // the records about the key may be wrong
	mark    uint32        // of its packets if the service is one by mark, otherwise 0
	newMark bool          // accept has drawn the mark
}

// job is the work on one IPVS service: program changes it from have to want.
type job struct {
	want   *kernel.State // nil: no service
	have   *kernel.State // in the kernel; nil: no service
	unread bool          // have is unknown and must be read
	owned  bool          // a service at this key is ours

	// The state between the rounds of program.
	requested bool    // an addition of the service was sent, with an unknown outcome
	again     bool    // another round is needed although nothing failed
	rejected  bool    // the kernel rejected a change of the service itself
	errs      []error // rejected changes of the last round

	wanted, known, made kernel.State // what want and have point to
}

// failed reports whether the service doesn't exist because the kernel rejected it.
func (j *job) failed() bool { return j.rejected && j.have == nil }

// result is the outcome of an item.
type result struct {
	blocked bool    // the place is taken, so nothing is programmed
	errs    []error // except those of the job
}

func (it *item) fail(err error) { it.result.errs = append(it.result.errs, err) }

// block records that the place of the item is taken.
func (it *item) block(err error) {
	it.result.blocked = true
	it.fail(err)
}

// err returns the errors that keep the frontend from being as wanted.
func (it *item) err() error {
	errs := append(it.result.errs, it.service.errs...)
	if len(errs) == 0 {
		return nil
	}
	err := errs[0]
	if len(errs) > 1 {
		err = fmt.Errorf("%w (and %d more)", err, len(errs)-1)
	}
	if it.update.New != nil && !it.result.blocked && !it.service.rejected {
		return usage.Partly{Err: err}
	}
	return err
}

// versions are the frontends at the item's key: the recorded one, and the update's old and
// new one. Each may be nil.
func (it *item) versions() [3]*vip.Frontend {
	return [...]*vip.Frontend{it.old, it.update.Old, it.update.New}
}

// before appends the frontends that may have left elements in the table.
func (it *item) before(all []*vip.Frontend) []*vip.Frontend {
	for i, f := range it.versions() {
		if f != nil && (i == 0 || it.repair || it.result.blocked || it.service.rejected) {
			all = append(all, f)
		}
	}
	return all
}

// onHost reports whether the item concerns no virtual address, before or after.
func (it *item) onHost() bool {
	for _, f := range it.versions() {
		if f != nil && usage.OnDevice(f) {
			return false
		}
	}
	return true
}
