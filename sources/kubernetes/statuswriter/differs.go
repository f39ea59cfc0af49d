package statuswriter

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// differing are the Services with other addresses in their status than this host assigned, while
// another host is the writer. This happens if hosts have no common store. Their clients then get
// different results on different hosts. This host writes nothing. It reports the differences that two
// looks have found, unless the second one found fewer: then the writer is correcting them.
type differing struct {
	found map[vip.ServiceKey]difference // by the last look
	next  time.Time                     // time of the next look
}

// difference is the difference of one Service.
type difference struct{ theirs, ours string }

// differsEvery is the time between two looks. If the writer is dead, its successor is elected within this time.
const differsEvery = 30 * time.Second

// codeDiffers is the code of a VIP that another host has published differently.
const codeDiffers = "vip_differs"

// difference returns the addresses in a Service's status and those that this host would write, if they differ. It
// ignores ipMode.
func (s *situation) difference() (one difference, is bool) {
	if s.service == nil || !s.ours || s.service.DeletionTimestamp != nil || s.grant != grantSome {
		return one, false
	}
	one = difference{theirs: joined(s.service.Status.LoadBalancer.Ingress), ours: joined(s.ingress())}
	return one, one.theirs != "" && one.theirs != one.ours
}

// reportDiffering looks for differences if it is time, and returns the time until the next look. A look costs O(Services).
func (w *Writer) reportDiffering() (again time.Duration) {
	d := &w.differs
	if left := time.Until(d.next); left > 0 {
		return left
	}
	d.next = time.Now().Add(differsEvery)
	if !w.able() { // the known statuses are outdated
		return differsEvery
	}
	before, lasting := d.found, []vip.ServiceKey{}
	d.found = map[vip.ServiceKey]difference{}
	for key := range w.entries {
		s := w.observe(key)
		if one, is := s.difference(); is {
			d.found[key] = one
			if before[key] == one {
				lasting = append(lasting, key)
			}
		}
	}
	holder, _ := w.Elected()
	if len(lasting) == 0 || len(d.found) < len(before) || holder == "" || holder == w.o.Identity {
		w.troubles.differ(nil)
		return differsEvery
	}
	first := slices.MinFunc(lasting, vip.ServiceKey.Compare)
	one := d.found[first]
	message := fmt.Sprintf("host %q wrote %s into its status, this host assigned %s", holder, one.theirs, one.ours)
	if len(lasting) > 1 {
		message += fmt.Sprintf(", and so with %d more Services", len(lasting)-1)
	}
	w.troubles.differ(&vip.Problem{Code: codeDiffers, Place: w.o.Place(first), Service: strict.Name(first.String()), Message: message,
		Hint: `give all hosts one store (ipam.store = "consul"); where they have, "ironvip status" on that host says why it writes nothing newer`})
	return differsEvery
}

// agree removes the report of a host that writes itself, and forgets the differences.
func (w *Writer) agree() {
	w.differs = differing{}
	w.troubles.differ(nil)
}

func joined(list []corev1.LoadBalancerIngress) string {
	var ips []string
	for _, ingress := range list {
		ips = append(ips, ingress.IP)
	}
	return strings.Join(ips, " and ")
}
