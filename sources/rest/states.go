package rest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// Override is what an operator said of one backend, as the registry keeps it.
type Override struct {
	State string    `json:"state"` // one of those that ParseState reads, unless a foreign hand wrote it
	Since time.Time `json:"since"`
	Node  string    `json:"node,omitempty"` // of a fleet: that it was said to, which looks after it
}

// states are what an operator may say.
var states = []vip.State{vip.Ready, vip.Drain, vip.Maint}

// ParseState reads what an operator says of a backend. The error is an
// *InvalidError.
func ParseState(word string) (vip.State, error) {
	for _, s := range states {
		if s.String() == word {
			return s, nil
		}
	}
	return 0, &InvalidError{[]vip.Problem{{Code: vip.CodeInvalid, Field: "state",
		Message: fmt.Sprintf("%q is not a state", word), Hint: "use ready, drain or maint"}}}
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
	return storeKey(k.Service) + "/" + backendID{k.Address, k.Port}.String()
}

func parseOverrideKey(s string) (vip.BackendKey, error) {
	parts := strings.SplitN(s, "/", 3)
	if len(parts) != 3 {
		return vip.BackendKey{}, fmt.Errorf("%q names no backend", s)
	}
	addr, port, err := vip.ParseBackendID(parts[2])
	return vip.BackendKey{Service: vip.ServiceKey{Namespace: parts[0], Name: parts[1]}, Address: addr, Port: port}, err
}

// checkOverride says what is wrong with what is stored at a key.
func checkOverride(at, state string) error {
	key, err := parseOverrideKey(at)
	if err != nil {
		return err
	}
	if overrideKey(key) != at {
		return fmt.Errorf("%q is to be written as %q", at, overrideKey(key))
	}
	if _, err := ParseState(state); err != nil {
		return fmt.Errorf("%q is not a state", state)
	}
	return nil
}

// takeStates takes in what the registry of overrides tells: the way of every
// state that was not set here.
func (s *Source) takeStates(items []Item[Override]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range items {
		if s.Overrides.Version(items[i].Key) == items[i].Version { // else a later one is to come
			s.takeState(&items[i])
		}
	}
}

// takeState takes in one override. The caller holds mu.
func (s *Source) takeState(item *Item[Override]) {
	key, err := parseOverrideKey(item.Key)
	if err == nil && item.Version != 0 {
		err = checkOverride(item.Key, item.Value.State)
	}
	if item.Version == 0 && s.Overrides.Unreadable(item.Key) {
		s.keptStates[item.Key] = struct{}{} // what was said last stays in force
		return
	}
	delete(s.keptStates, item.Key)
	if _, odd := s.oddStates[item.Key]; odd || err != nil {
		delete(s.oddStates, item.Key)
		if err != nil && item.Version != 0 {
			s.oddStates[item.Key] = vip.Problem{Code: vip.CodeStore, Place: item.Key, Message: "stored backend state: " + err.Error(), Hint: "remove what is stored there"}
			s.Log.Error("backend state not read", "key", item.Key, "err", err)
		}
		s.tellProblems()
	}
	if err != nil {
		return
	}
	now, _, set := s.States.Get(key)
	state, _ := ParseState(item.Value.State)          // the zero one where nothing is said any more
	wanted := item.Version != 0 && state != vip.Ready // which is there for a moment, see SetState
	switch {
	case !wanted && set:
		s.States.Delete(key)
		s.tellState(key, vip.Ready, item.Value.Node)
	case wanted && (!set || now.State != state):
		s.States.Set(vip.BackendState{Backend: key, State: state})
		s.tellState(key, state, item.Value.Node)
	}
}

// tellState books a state that is in force from now on, on each host of a fleet;
// node is the one that was told, "" where that isn't known. What was said before this
// host ran is no news, nor is that nothing is said any more of a backend that is gone.
// The caller holds mu.
func (s *Source) tellState(key vip.BackendKey, to vip.State, node string) {
	id := backendID{key.Address, key.Port}
	if svc, _, ok := s.inForce(key.Service); s.sink == nil || !ok || indexOf(svc.Backends, id) < 0 {
		return
	}
	e := event.Event{Kind: "backend_state", Service: key.Service.String(), Object: id.String(), Message: "set to " + to.String()}
	if node != "" && node != s.Node {
		e.Message += " through node " + node
	}
	s.Events.Add(e)
}

// SetState says what an operator wants of a backend of any source: Drain and
// Maint stay in force, also across restarts, and on all hosts of a fleet, until
// Ready takes them back. It returns when that is durable and in the States
// table, with the revision of the change. Errors are ErrNoService, ErrNoBackend,
// ErrNotRunning, ErrStore, *ConflictError.
func (s *Source) SetState(ctx context.Context, key vip.BackendKey, to vip.State) (rev uint64, err error) {
	if _, err := ParseState(to.String()); err != nil {
		return 0, err
	}
	if err := s.hasBackend(ctx, key); err != nil {
		return 0, err
	}
	unlock, err := s.stateNames.lock(ctx, []vip.ServiceKey{key.Service})
	if err != nil {
		return 0, err
	}
	defer unlock()
	at := overrideKey(key)
	said := false // already
	for try := 0; ; try++ {
		edit := Edit[Override]{Key: at, Version: s.Overrides.Version(at)}
		s.refreshState(at)
		now, rev, set := s.States.Get(key)
		said = set && now.State == to || !set && to == vip.Ready
		switch {
		case said && s.Fleet == nil && set:
			return rev, nil
		case said && s.Fleet == nil:
			return s.States.Revision(), nil
		case said && set: // another host may have said otherwise since: the same again writes nothing, and finds out
			same, _ := s.Overrides.Get(at)
			edit.Value = &same
		case to != vip.Ready || edit.Version == 0: // also that nothing is said is found out by saying something
			edit.Value = &Override{State: to.String(), Since: time.Now().UTC(), Node: s.Node}
		}
		edits := []Edit[Override]{edit}
		lost, err := s.writeStates(ctx, edits)
		if err == nil && len(lost) == 0 && to == vip.Ready && edit.Value != nil {
			_, err = s.writeStates(ctx, []Edit[Override]{{Key: at, Version: edits[0].Written}})
			err = partly(err)
		}
		if err != nil {
			return 0, err
		}
		if len(lost) == 0 {
			break
		}
		if unreadable := s.Overrides.Unreadable(at); unreadable || try == editTries {
			return 0, &ConflictError{Service: key.Service, Unreadable: unreadable}
		}
	}
	if _, now, set := s.States.Get(key); set {
		return now, nil
	}
	return s.States.Revision(), nil
}

// hasBackend returns ErrNoService or ErrNoBackend where there is none, also by what
// another host has registered a moment ago.
func (s *Source) hasBackend(ctx context.Context, key vip.BackendKey) error {
	has := func() error {
		svc, _, ok := s.inForce(key.Service)
		switch {
		case !ok:
			return ErrNoService
		case indexOf(svc.Backends, backendID{key.Address, key.Port}) < 0:
			return ErrNoBackend
		}
		return nil
	}
	missing := has()
	svc, _, ok := s.inForce(key.Service)
	switch {
	case missing == nil:
		return nil
	case s.Services != nil && !isReady(s.Services.Ready()), s.Fleet != nil && !s.running():
		return ErrNotRunning // what isn't there may only have yet to be read
	case s.Fleet == nil || ok && svc.Source != s.Name:
		return missing
	}
	c, err := s.begin(ctx, []vip.ServiceKey{key.Service})
	if err != nil {
		return err
	}
	defer c.end()
	if err := s.Store.Look(ctx, storeKey(key.Service)); err != nil {
		return err
	}
	c.read(key.Service) // which takes it in; it may have come by the feed meanwhile, too
	return has()
}

// refreshState has the States table show what the registry has at key now.
func (s *Source) refreshState(at string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Fleet == nil {
		return // nobody else writes
	}
	item := Item[Override]{Key: at}
	item.Value, item.Version = s.Overrides.Get(at)
	s.takeState(&item)
}

// writeStates makes the edits durable, each for itself, and then visible. Lost
// are those that met another version.
func (s *Source) writeStates(ctx context.Context, edits []Edit[Override]) (lost []string, err error) {
	batches := make([]*Batch[Override], len(edits))
	for i := range edits {
		batches[i] = &Batch[Override]{Edits: edits[i : i+1]}
	}
	if err := s.Overrides.Commit(ctx, batches); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, b := range batches {
		edit := &edits[i]
		if b.Err != nil {
			lost = append(lost, edit.Key)
			continue
		}
		item := Item[Override]{Key: edit.Key, Version: edit.Written}
		if edit.Value != nil {
			item.Value = *edit.Value
		}
		if s.Overrides.Version(edit.Key) != edit.Written { // another host was quick to replace it
			item.Value, item.Version = s.Overrides.Get(edit.Key)
		}
		s.takeState(&item)
	}
	return lost, nil
}

// sweepStates drops the overrides of backends that have been gone for
// overrideGrace. Before every source has spoken nobody counts as gone. In a
// fleet each host does that for what was said to it, the elected one also for
// hosts that are not there: what one host's files name another may not know.
func (s *Source) sweepStates(ctx context.Context) {
	if s.Services == nil {
		return
	}
	select {
	case <-s.Services.Ready():
	default:
		return
	}
	now := time.Now()
	var drop []Edit[Override]
	var missing []vip.BackendKey
	for key := range s.States.All() {
		svc, _, ok := s.inForce(key.Service)
		if ok && indexOf(svc.Backends, backendID{key.Address, key.Port}) >= 0 {
			delete(s.missing, key)
			continue
		}
		if since, known := s.missing[key]; !known {
			s.missing[key] = now
		} else if now.Sub(since) >= overrideGrace && s.looksAfter(overrideKey(key)) {
			drop = append(drop, Edit[Override]{Key: overrideKey(key), Version: s.Overrides.Version(overrideKey(key))})
			missing = append(missing, key)
		}
	}
	if len(drop) == 0 {
		return
	}
	services := make([]vip.ServiceKey, 0, len(missing))
	for _, key := range missing {
		services = append(services, key.Service)
	}
	slices.SortFunc(services, compareKeys)
	unlock, err := s.stateNames.lock(ctx, slices.Compact(services))
	if err != nil {
		return
	}
	defer unlock()
	if _, err := s.writeStates(ctx, drop); err != nil {
		s.Log.Error("drop the states of backends that are gone; tried again", "after", sweepInterval, "err", err)
		return
	}
	for _, key := range missing {
		delete(s.missing, key)
	}
}

// looksAfter reports whether the override at a key is this host's to sweep.
func (s *Source) looksAfter(at string) bool {
	if s.Fleet == nil {
		return true
	}
	o, version := s.Overrides.Get(at)
	return version != 0 && (o.Node == s.Node || s.Fleet.Mine() && s.away(o.Node))
}
