package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// differing are the Services whose status has other addresses than this host
// assigned, while another host is the writer: so it is with hosts that have no
// store in common, whose clients then get different answers by the host they
// reach. This host writes nothing, and tells of it once that can't be because the
// writer has yet to write what is new.
type differing struct {
	of    map[vip.ServiceKey]difference
	moved time.Time // when a status last became what it should be: the writer is at work
	next  time.Time // when to look again
}

// difference is one Service's.
type difference struct {
	theirs, ours string
	since        time.Time
}

const (
	// differsFor is how long a status may be behind, and the writer not be seen to
	// fix any: a dead one's successor is elected by then.
	differsFor   = 30 * time.Second
	differsEvery = 10 * time.Second
)

// codeDiffers is the code of a VIP that another host has told otherwise.
const codeDiffers = "vip_differs"

// compare notes whether a Service's status is as this host would have written it.
// The modes of addresses don't count.
func (w *Writer) compare(key vip.ServiceKey, s *situation) {
	var have, want []string
	if s.service != nil && s.ours && s.service.DeletionTimestamp == nil && s.grant == grantSome {
		for _, ingress := range s.service.Status.LoadBalancer.Ingress {
			have = append(have, ingress.IP)
		}
		for _, ingress := range s.ingress() {
			want = append(want, ingress.IP)
		}
	}
	if len(have) == 0 || slices.Equal(have, want) {
		if _, there := w.differs.of[key]; there && len(have) > 0 {
			w.differs.moved = time.Now()
		}
		delete(w.differs.of, key)
		return
	}
	now := difference{theirs: joined(have), ours: joined(want), since: time.Now()}
	if before, there := w.differs.of[key]; there && before.theirs == now.theirs && before.ours == now.ours {
		return
	}
	if w.differs.of == nil {
		w.differs.of = map[vip.ServiceKey]difference{}
	}
	w.differs.of[key] = now
}

// tellDiffering says what has differed for long, and returns when to look again;
// waits says that there is something to look at.
func (w *Writer) tellDiffering() (again time.Duration, waits bool) {
	d := &w.differs
	if len(d.of) == 0 {
		w.agree()
		return 0, false
	}
	if left := time.Until(d.next); left > 0 {
		return left, true
	}
	d.next = time.Now().Add(differsEvery)
	if !w.able() { // what is known of the statuses is old
		return differsEvery, true
	}
	var first vip.ServiceKey
	many := 0
	for key, one := range d.of {
		if time.Since(one.since) < differsFor || time.Since(d.moved) < differsFor {
			continue
		}
		if many++; many == 1 || compareKeys(key, first) < 0 {
			first = key
		}
	}
	holder, _ := w.Elected()
	if many == 0 || holder == "" || holder == w.o.Identity {
		w.troubles.differ(nil)
		return differsEvery, true
	}
	one := d.of[first]
	message := fmt.Sprintf("host %q wrote %s into its status, this host assigned %s", holder, one.theirs, one.ours)
	if many > 1 {
		message += fmt.Sprintf(", and so with %d more Services", many-1)
	}
	w.troubles.differ(&vip.Problem{Code: codeDiffers, Place: placeIn(w.source, first), Service: first.String(), Message: message,
		Hint: `give all hosts one store (ipam.store = "consul"); where they have, "ironvip status" on that host says why it writes nothing newer`})
	return differsEvery, true
}

// agree is for a host that writes itself, or has nothing to say.
func (w *Writer) agree() {
	if w.leads {
		w.differs = differing{}
	}
	w.differs.next = time.Time{}
	w.troubles.differ(nil)
}

func joined(ips []string) string { return strings.Join(ips, " and ") }
