package control

import "github.com/ironvip/ironvip/vip"

// touched is a queue of services to look at again, each once, in the order in
// which they were first added. The zero value is empty and ready to use.
type touched struct {
	keys []vip.ServiceKey
	set  map[vip.ServiceKey]struct{}
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

func (t *touched) len() int { return len(t.keys) }

func (t *touched) has(k vip.ServiceKey) bool {
	_, there := t.set[k]
	return there
}

// take removes and returns the first service.
func (t *touched) take() (k vip.ServiceKey, ok bool) {
	if len(t.keys) == 0 {
		return k, false
	}
	k = t.keys[0]
	delete(t.set, k)
	if t.keys = t.keys[1:]; len(t.keys) == 0 {
		t.keys = nil
	}
	return k, true
}
