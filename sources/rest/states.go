package rest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/state"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/event"
)

// Override is what an operator said of one backend, as the store keeps it.
type Override struct {
	State vip.State `json:"state"`
	Since time.Time `json:"since"`
}

// An override outlives its backend by overrideGrace, so that a backend that is
// deployed anew or a source that restarts finds it as the operator left it. The
// sweep that drops it costs O(overrides), of which there are no more than there
// have been backends within that time.
const (
	overrideGrace = time.Hour
	sweepInterval = 10 * time.Minute
)

func overrideKey(k vip.BackendKey) string {
	return storeKey(k.Service) + "/" + vip.Backend{Address: k.Address, Port: k.Port}.ID()
}

func parseOverrideKey(s string) (vip.BackendKey, error) {
	parts := strings.SplitN(s, "/", 3)
	if len(parts) != 3 {
		return vip.BackendKey{}, fmt.Errorf("%q names no backend", s)
	}
	addr, port, err := vip.ParseBackendID(parts[2])
	return vip.BackendKey{Service: vip.ServiceKey{Namespace: parts[0], Name: parts[1]}, Address: addr, Port: port}, err
}

// restoreStates fills the States table.
func (s *Source) restoreStates() error {
	all, err := s.Overrides.All()
	if err != nil {
		if !errors.Is(err, state.ErrDamaged) {
			return err
		}
		s.damaged(vip.Problem{Code: vip.CodeStore, Message: err.Error()})
	}
	for name, o := range all {
		key, err := parseOverrideKey(name)
		if err != nil {
			s.damaged(vip.Problem{Code: vip.CodeStore, Message: "stored backend state: " + err.Error()})
			continue
		}
		s.States.Set(key, o.State)
	}
	return nil
}

// SetState says what an operator wants of a backend of any source: Drain and
// Maint stay in force, also across restarts, until Ready takes them back. It
// returns when that is durable and in the States table, with the revision of
// the change. Errors are ErrNoService, ErrNoBackend, ErrStore.
func (s *Source) SetState(key vip.BackendKey, to vip.State) (rev uint64, err error) {
	if !slices.Contains([]vip.State{vip.Ready, vip.Drain, vip.Maint}, to) {
		return 0, &InvalidError{[]vip.Problem{{Code: vip.CodeInvalid, Field: "state",
			Message: fmt.Sprintf("%q is not a state", to), Hint: "use ready, drain or maint"}}}
	}
	svc, _, ok := s.inForce(key.Service)
	if !ok {
		return 0, ErrNoService
	}
	if indexOf(svc.Backends, backendID{key.Address, key.Port}) < 0 {
		return 0, ErrNoBackend
	}
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	now, rev, set := s.States.Get(key)
	switch {
	case to == vip.Ready && !set:
		return s.States.Revision(), nil
	case set && now == to:
		return rev, nil
	}
	err = s.Overrides.Batch(func(tx *state.Tx[Override]) {
		if to == vip.Ready {
			tx.Delete(overrideKey(key))
		} else {
			tx.Put(overrideKey(key), Override{State: to, Since: time.Now().UTC()})
		}
	})
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrStore, err)
	}
	if to == vip.Ready {
		s.States.Delete(key)
		rev = s.States.Revision()
	} else {
		rev = s.States.Set(key, to)
	}
	s.Events.Add(event.Event{Kind: "backend_state", Service: key.Service.String(),
		Object: vip.Backend{Address: key.Address, Port: key.Port}.ID(), Message: "set to " + string(to)})
	return rev, nil
}

// sweepStates drops the overrides of backends that have been gone for
// overrideGrace. Before every source has spoken nobody counts as gone.
func (s *Source) sweepStates() {
	if s.Services == nil {
		return
	}
	select {
	case <-s.Services.Ready():
	default:
		return
	}
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	now := time.Now()
	var drop []vip.BackendKey
	for key := range s.States.All() {
		svc, _, ok := s.inForce(key.Service)
		if ok && indexOf(svc.Backends, backendID{key.Address, key.Port}) >= 0 {
			delete(s.missing, key)
			continue
		}
		if since, known := s.missing[key]; !known {
			s.missing[key] = now
		} else if now.Sub(since) >= overrideGrace {
			drop = append(drop, key)
		}
	}
	if len(drop) == 0 {
		return
	}
	err := s.Overrides.Batch(func(tx *state.Tx[Override]) {
		for _, key := range drop {
			tx.Delete(overrideKey(key))
		}
	})
	if err != nil {
		s.Log.Error("drop the states of backends that are gone; tried again", "after", sweepInterval, "err", err)
		return
	}
	for _, key := range drop {
		s.States.Delete(key)
		delete(s.missing, key)
	}
}
