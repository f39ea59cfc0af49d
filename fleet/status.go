package fleet

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// FirstProblems returns at most that many of the problems, and the number of all: the problems of the tree as a
// whole come first, then those of keys.
func (t *Tree) FirstProblems(most int) (first []vip.Problem, all int) {
	first = t.status.Problems()
	var keys []vip.Problem
	t.mu.Lock()
	for _, f := range t.folders {
		for _, v := range f.views {
			keys = append(keys, v.problems()...)
		}
	}
	t.mu.Unlock()
	for _, some := range [][]vip.Problem{first, keys} {
		slices.SortFunc(some, func(a, b vip.Problem) int { return strings.Compare(a.Place, b.Place) })
	}
	first = append(first, keys...)
	all = len(first)
	return first[:min(all, most):min(all, most)], all
}

// Engine returns the words for the store.
func (t *Tree) Engine() kv.Engine { return t.o.KV.Engine() }

// Duplicate returns which other live host has this host's id or name, or nil.
func (t *Tree) Duplicate() *membership.DuplicateNodeError { return t.status.Duplicate() }

// Stale returns why the tables may be old, or "" if they are current.
func (t *Tree) Stale() string {
	why, _, _ := t.status.Stale()
	return why
}

// StaleSince is Stale with the time since when, and with a hint if there is more to do than to
// check the store.
func (t *Tree) StaleSince() (why, advice string, since time.Time) { return t.status.Stale() }

// StatusChanged returns a channel that is closed when Stale or Problems change. Every change
// replaces it.
func (t *Tree) StatusChanged() <-chan struct{} { return t.status.Changed() }

// setStale reports that the tables may be old. The error may have a Hint method, for a hint other
// than to check the store.
func (t *Tree) setStale(err error) {
	why := text.Clip(err.Error(), 1<<10) // the store can choose a part of it
	advice, message := "", why
	if hinted, is := errors.AsType[interface {
		error
		Hint() string
	}](err); is {
		advice = hinted.Hint()
		message += ": " + advice
	}
	if t.status.SetStale(why, advice) {
		t.log.Warn("out of touch with "+t.o.KV.Engine().Name+": going on with what is known", "err", message)
		t.o.Events.Add(event.Event{Kind: "fleet_stale", Message: message})
	}
}
