package dns

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ironvip/ironvip/internal/keep"
	"github.com/ironvip/ironvip/vip"
)

// ContestedStore keeps which service has each contested name across a restart, by name. The error of All is
// an unreadable if it has the names of all others.
type ContestedStore = keep.Store[vip.ServiceKey]

// unreadable is the error of stored values that can't be read. A *store.Error is one.
type unreadable interface {
	error
	Unreadable() (names []string)
}

// contested is a name that several services want, and the one that has it.
type contested struct {
	name   string
	winner vip.ServiceKey
}

func keyOfContested(c *contested) string { return c.name }

// restore returns the winners that the last run has stored. A name with a winner that can't be read is held
// for nobody, the zero key, until every source has been read, when it is stored anew or removed.
func restore(from ContestedStore, log *slog.Logger) map[string]vip.ServiceKey {
	stored, err := from.All()
	if stored == nil {
		stored = make(map[string]vip.ServiceKey)
	}
	var names []string
	if bad, ok := errors.AsType[unreadable](err); ok {
		names = bad.Unreadable()
	}
	switch {
	case len(names) > 0:
		log.Error("contested names unreadable; they get SERVFAIL until every source has been read, and are then stored again", "names", len(names), "err", err)
		for _, name := range names {
			stored[name] = vip.ServiceKey{}
		}
	case err != nil:
		log.Error("contested names unreadable; until every source has been read, clients can get the address of a service that has lost its name", "err", err)
	}
	return stored
}

// keep writes the contested names until the context ends. It begins once every source has been read: the table is
// incomplete before. Stored are the names of the last run.
func (s *Stage) keep(ctx context.Context, stored map[string]vip.ServiceKey) {
	names := make(map[string]bool, len(stored))
	for name := range stored {
		names[name] = true
	}
	select {
	case <-ctx.Done():
		return
	case <-s.synced:
	}
	k := keep.Keeper[string, contested, vip.ServiceKey]{
		Table: s.contested, Store: s.Store, Log: s.Log, What: "contested names", Names: names, Complete: []<-chan struct{}{s.synced},
		Name: func(name string) string { return name }, Row: func(c *contested) vip.ServiceKey { return c.winner },
	}
	k.Run(ctx)
}
