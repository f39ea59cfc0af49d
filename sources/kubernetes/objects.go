package kubernetes

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/vip"
)

// objectStore is what the Source knows of Services, for the Writer: the newest
// object of each that the configured namespaces and selector let through,
// whatever its type or class, and which of them have changed since the Writer
// last looked. Objects are shared and never written to; of what a Service has,
// managedFields and kubectl's copy of it in an annotation are left out. It is
// safe for concurrent use, and a change costs O(1).
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

// Get returns the newest object. One that is not there may be one that isn't
// known yet, unless the store is InTouch.
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

// Problems returns what is wrong with a Service's object.
func (s *objectStore) Problems(key vip.ServiceKey) []vip.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problems[key]
}

// InTouch reports whether all objects have been read, and the server can be
// asked: what is not in the store then is not in the cluster either, as far as
// the newest word goes.
func (s *objectStore) InTouch() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inTouch
}

// Changed returns a channel that has a word in it when TakeChanged has news, or
// InTouch has changed. It is for one reader.
func (s *objectStore) Changed() <-chan struct{} { return s.wake }

// TakeChanged returns the keys of Services whose object or problems have changed,
// came or went since it was last called, in no order.
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

// put takes in the newest object of a Service, nil for one that is gone.
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

// describe takes in what is wrong with a Service's object.
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

// touch says whether the objects are all that there are.
func (s *objectStore) touch(in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inTouch != in {
		s.inTouch = in
		s.note()
	}
}

// change notes that there is news of a Service. The caller holds mu.
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
