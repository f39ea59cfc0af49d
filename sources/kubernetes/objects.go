package kubernetes

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/vip"
)

// objectStore holds the Services that the Source knows, for the Writer. It has the newest object of
// each Service that matches the configured namespaces and selector, whatever its type or class. It
// also records which Services have changed since the Writer last checked. Objects are shared and
// must not be changed. They lack managedFields and the annotation with kubectl's copy of the
// Service. The store is safe for concurrent use. A change costs O(1).
type objectStore struct {
	wake chan struct{}

	mu       sync.Mutex
	services map[vip.ServiceKey]*corev1.Service
	problems map[vip.ServiceKey][]vip.Problem
	changed  map[vip.ServiceKey]struct{}
	inTouch  bool
}

func newObjectStore() *objectStore {
	return &objectStore{wake: make(chan struct{}, 1), services: map[vip.ServiceKey]*corev1.Service{},
		problems: map[vip.ServiceKey][]vip.Problem{}, changed: map[vip.ServiceKey]struct{}{}}
}

// Get returns the newest object. Unless the store is InTouch, a missing Service may exist without
// being known yet.
func (s *objectStore) Get(key vip.ServiceKey) (*corev1.Service, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	service, there := s.services[key]
	return service, there
}

// Keys returns the keys of all Services, in no order.
func (s *objectStore) Keys() []vip.ServiceKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]vip.ServiceKey, 0, len(s.services))
	for key := range s.services {
		keys = append(keys, key)
	}
	return keys
}

// Problems returns the problems with a Service's object.
func (s *objectStore) Problems(key vip.ServiceKey) []vip.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problems[key]
}

// InTouch reports whether all objects have been read and the server can be reached. A Service that
// is not in the store then does not exist in the cluster, according to the newest data.
func (s *objectStore) InTouch() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inTouch
}

// Changed returns a channel with an element when TakeChanged has new keys or InTouch has changed.
// It is for one reader.
func (s *objectStore) Changed() <-chan struct{} { return s.wake }

// TakeChanged returns the keys of Services whose object or problems were added, changed or removed
// since the last call, in no order.
func (s *objectStore) TakeChanged() []vip.ServiceKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]vip.ServiceKey, 0, len(s.changed))
	for key := range s.changed {
		keys = append(keys, key)
	}
	clear(s.changed)
	return keys
}

// put stores the newest object of a Service; nil removes it.
func (s *objectStore) put(key vip.ServiceKey, service *corev1.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if service == nil {
		delete(s.services, key)
		delete(s.problems, key)
	} else {
		s.services[key] = service
	}
	s.change(key)
}

// describe stores the problems with a Service's object.
func (s *objectStore) describe(key vip.ServiceKey, problems []vip.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.problems[key], problems) {
		return
	}
	if len(problems) == 0 {
		delete(s.problems, key)
	} else {
		s.problems[key] = problems
	}
	s.change(key)
}

// touch records whether the store is InTouch.
func (s *objectStore) touch(in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inTouch != in {
		s.inTouch = in
		s.note()
	}
}

// change records a change of a Service. The caller holds mu.
func (s *objectStore) change(key vip.ServiceKey) {
	s.changed[key] = struct{}{}
	s.note()
}

func (s *objectStore) note() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
