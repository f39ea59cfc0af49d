package pipeline

import "github.com/ironvip/ironvip/vip"

// touched is a queue of services to process again, each once, in the order in which they were first
// added. The zero value is empty and ready to use.
type touched struct {
	keys  []vip.ServiceKey
	taken int // of keys
	set   map[vip.ServiceKey]struct{}
}

func (t *touched) add(k vip.ServiceKey) {
	if _, there := t.set[k]; there {
		return
	}
	if t.set == nil {
		t.set = make(map[vip.ServiceKey]struct{})
	}
	t.set[k] = struct{}{}
	t.keys = append(t.keys, k)
}

func (t *touched) len() int { return len(t.keys) - t.taken }

// waiting returns the services, first come first. Callers must not change it.
func (t *touched) waiting() []vip.ServiceKey { return t.keys[t.taken:] }

func (t *touched) has(k vip.ServiceKey) bool {
	_, there := t.set[k]
	return there
}

// take removes and returns the first service. An empty queue keeps its memory for later services.
func (t *touched) take() (k vip.ServiceKey, ok bool) {
	if t.len() == 0 {
		return k, false
	}
	k = t.keys[t.taken]
	delete(t.set, k)
	if t.taken++; t.len() == 0 {
		clear(t.keys)
		t.keys, t.taken = t.keys[:0], 0
	}
	return k, true
}

// empty removes every service.
func (t *touched) empty() {
	for t.len() > 0 {
		t.take()
	}
}
