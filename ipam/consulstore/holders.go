package consulstore

import (
	"slices"
	"strings"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// holderIndex finds the services whose holdings name a resource. A change costs O(what the service
// holds).
type holderIndex struct {
	holds map[vip.ServiceKey][]ipam.Resource
	by    map[ipam.Resource][]vip.ServiceKey
}

func newHolderIndex() holderIndex {
	return holderIndex{make(map[vip.ServiceKey][]ipam.Resource), make(map[ipam.Resource][]vip.ServiceKey)}
}

// set replaces the holdings of a service, and returns the resources that it gained or lost.
func (n *holderIndex) set(k vip.ServiceKey, now []ipam.Resource) (changed []ipam.Resource) {
	was := n.holds[k]
	for _, r := range was {
		if slices.Contains(now, r) {
			continue
		}
		changed = append(changed, r)
		list := slices.DeleteFunc(n.by[r], func(other vip.ServiceKey) bool { return other == k })
		if n.by[r] = list; len(list) == 0 {
			delete(n.by, r)
		}
	}
	for _, r := range now {
		if !slices.Contains(was, r) && !slices.Contains(changed, r) {
			changed = append(changed, r)
			n.by[r] = append(n.by[r], k)
		}
	}
	if n.holds[k] = now; len(now) == 0 {
		delete(n.holds, k)
	}
	return changed
}

// holders returns the services whose holdings name the resource, sorted.
func (n *holderIndex) holders(r ipam.Resource) (out []ipam.Holder) {
	for _, k := range n.by[r] {
		out = append(out, ipam.Holder{Service: k})
	}
	slices.SortFunc(out, func(a, b ipam.Holder) int { return strings.Compare(serviceKeyOf(a.Service), serviceKeyOf(b.Service)) })
	return out
}
