package consulstore

import (
	"slices"
	"strings"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// naming says which services' holdings name a resource. A change costs O(what
// the service holds).
type naming struct {
	holds map[vip.ServiceKey][]ipam.Resource
	by    map[ipam.Resource][]vip.ServiceKey
}

func newNaming() naming {
	return naming{make(map[vip.ServiceKey][]ipam.Resource), make(map[ipam.Resource][]vip.ServiceKey)}
}

// set notes what a service's holdings name, and returns the resources of which
// that is news.
func (n *naming) set(k vip.ServiceKey, now []ipam.Resource) (changed []ipam.Resource) {
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

// holders are those whose holdings name the resource, in order.
func (n *naming) holders(r ipam.Resource) (out []ipam.Holder) {
	for _, k := range n.by[r] {
		out = append(out, ipam.Holder{Service: k})
	}
	slices.SortFunc(out, func(a, b ipam.Holder) int { return strings.Compare(serviceKeyOf(a.Service), serviceKeyOf(b.Service)) })
	return out
}
