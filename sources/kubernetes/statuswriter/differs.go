package statuswriter

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// differing are the Services with other addresses in their status than this host assigned, while
// another host is the writer. This happens if hosts have no common store. Their clients then get
// different results on different hosts. This host writes nothing. It reports the difference when it
// has lasted too long for a delay of the writer.
type differing struct {
	of    map[vip.ServiceKey]difference
	moved time.Time // when a status last became correct: the writer works
	next  time.Time // time of the next check
}

// difference is the difference of one Service.
type difference struct {
	theirs, ours string
	since        time.Time
}

const (
	// differsFor is how long a status may be outdated while the writer corrects none. If the writer
	// is dead, its successor is elected within this time.
	differsFor   = 30 * time.Second
	differsEvery = 10 * time.Second
)

// codeDiffers is the code of a VIP that another host has published differently.
const codeDiffers = "vip_differs"

// compare records whether a Service's status has the addresses that this host would write. It
// ignores ipMode.
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

// reportDiffering reports differences that have lasted and returns the time until the next check.
func (w *Writer) reportDiffering() (again time.Duration) {
	d := &w.differs
	if len(d.of) == 0 {
		w.agree()
		return forever
	}
	if left := time.Until(d.next); left > 0 {
		return left
	}
	d.next = time.Now().Add(differsEvery)
	if !w.able() { // the known statuses are outdated
		return differsEvery
	}
	var first vip.ServiceKey
	many := 0
	for key, one := range d.of {
		if time.Since(one.since) < differsFor || time.Since(d.moved) < differsFor {
			continue
		}
		if many++; many == 1 || key.Compare(first) < 0 {
			first = key
		}
	}
	holder, _ := w.Elected()
	if many == 0 || holder == "" || holder == w.o.Identity {
		w.troubles.differ(nil)
		return differsEvery
	}
	one := d.of[first]
	message := fmt.Sprintf("host %q wrote %s into its status, this host assigned %s", holder, one.theirs, one.ours)
	if many > 1 {
		message += fmt.Sprintf(", and so with %d more Services", many-1)
	}
	w.troubles.differ(&vip.Problem{Code: codeDiffers, Place: w.o.Place(first), Service: strict.Name(first.String()), Message: message,
		Hint: `give all hosts one store (ipam.store = "consul"); where they have, "ironvip status" on that host says why it writes nothing newer`})
	return differsEvery
}

// agree removes the report. A host that writes itself also forgets the differences.
func (w *Writer) agree() {
	if w.leads {
		w.differs = differing{}
	}
	w.differs.next = time.Time{}
	w.troubles.differ(nil)
}

func joined(ips []string) string { return strings.Join(ips, " and ") }
