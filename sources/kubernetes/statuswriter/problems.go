package statuswriter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// lackingFor is how long a request is not repeated after a permission was missing.
const lackingFor = time.Minute

// maxRefused is the maximum number of refused writes that are reported individually.
const maxRefused = 10

// right is a permission in RBAC: a verb on a resource of the API.
type right struct{ verb, resource string }

var (
	mayFinalize     = right{"patch", "services"}
	mayWrite        = right{"patch", "services/status"}
	mayList         = right{"list", "services"}
	mayCreateEvents = right{"create", "events"}
)

// troubles are the reasons why the Writer can't write. A missing permission is one problem,
// whatever the number of writes that need it. It is safe for concurrent use.
type troubles struct {
	o *Options

	mu        sync.Mutex
	lacks     map[right]map[string]time.Time // by namespace, the time of the next try
	refused   map[DocumentKey]vip.Problem    // of Services, without a resource, and of documents
	lease     string                         // why an election is not possible
	leaseVerb string                         // of the request that failed
	published []vip.Problem                  // as reported
}

func newTroubles(o *Options) *troubles {
	return &troubles{o: o, lacks: map[right]map[string]time.Time{}, refused: map[DocumentKey]vip.Problem{}}
}

// answered handles the result of a request.
func (t *troubles) answered(r right, namespace string, err error) {
	verdict, _ := judge(err)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch verdict {
	case verdictLacking:
		if t.lacks[r] == nil {
			t.lacks[r] = map[string]time.Time{}
		}
		t.lacks[r][namespace] = time.Now().Add(lackingFor)
	case verdictDone, verdictOutdated: // the request was permitted
		if delete(t.lacks[r], namespace); len(t.lacks[r]) == 0 {
			delete(t.lacks, r)
		}
	}
	t.publish()
}

// lacking returns how long not to send requests that need a missing permission.
func (t *troubles) lacking(r right, namespace string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.lacks[r][namespace])
}

// elected handles the result of a request for the Lease.
func (t *troubles) elected(namespace, verb string, err error) {
	t.answered(right{verb, "leases"}, namespace, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch verdict, _ := judge(err); {
	case err == nil && verb == "get" && t.leaseVerb == "update": // who can read it may still not be able to write it
	case verdict == verdictDone, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		t.lease, t.leaseVerb = "", ""
	case verdict == verdictRefused, verdict == verdictEnding, verdict == verdictOutdated && verb == "create":
		t.lease, t.leaseVerb = fmt.Sprintf("%s the Lease in namespace %s: %v", verb, namespace, err), verb
	}
	t.publish()
}

// refuse records that a write for an object was refused. accept removes the record.
func (t *troubles) refuse(key DocumentKey, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := vip.Problem{Code: codeWrite, Place: t.place(), Hint: "it is tried again, less and less often"}
	if key.Resource == "" {
		p.Service = strict.Name(t.o.Prefix.Name(vip.ServiceKey{Namespace: key.Namespace, Name: key.Name}).String())
		p.Message = fmt.Sprintf("the server refused to change it: %v", err)
	} else {
		p.Message = fmt.Sprintf("the server refused the status of %s: %v", key, err)
	}
	t.refused[key] = p
	t.publish()
}

// keyOf returns the key of a Service in refuse and accept.
func keyOf(key vip.ServiceKey) DocumentKey {
	return DocumentKey{Namespace: key.Namespace, Name: key.Name}
}

func (t *troubles) accept(key DocumentKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, was := t.refused[key]; was {
		delete(t.refused, key)
		t.publish()
	}
}

// codeWrite is the code of a write to the cluster that is not possible.
const codeWrite = "write_refused"

// publish reports the problems if they have changed. The caller holds mu.
func (t *troubles) publish() {
	now := t.problems()
	if slices.Equal(now, t.published) {
		return
	}
	for _, p := range now {
		if slices.Contains(t.published, p) {
			continue
		}
		t.o.Log.Warn("kubernetes: can't write", "why", p.Error(), "hint", p.Hint)
	}
	t.published = now
	t.o.Report(now)
}

// place returns the place of the cluster in messages.
func (t *troubles) place() string { return "kubernetes at " + t.o.Client.Server() }

func (t *troubles) problems() (out []vip.Problem) {
	rights := slices.SortedFunc(maps.Keys(t.lacks), func(a, b right) int {
		return cmp.Or(strings.Compare(a.resource, b.resource), strings.Compare(a.verb, b.verb))
	})
	for _, r := range rights {
		where := "namespace " + text.First(1, slices.Sorted(maps.Keys(t.lacks[r])), "")
		out = append(out, vip.Problem{Code: codeWrite, Place: t.place(),
			Message: fmt.Sprintf("no right to %s %s in %s", r.verb, r.resource, where),
			Hint:    "grant what configs/kubernetes/clusterrole.yaml has; it is tried again once a minute"})
	}
	if t.lease != "" {
		out = append(out, vip.Problem{Code: codeWrite, Place: t.place(), Message: t.lease,
			Hint: "without it nothing is written: make the namespace, or name another as lease_namespace"})
	}
	keys := slices.SortedFunc(maps.Keys(t.refused), func(a, b DocumentKey) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for i, key := range keys {
		if i == maxRefused {
			out = append(out, vip.Problem{Code: codeWrite, Place: t.place(), Message: fmt.Sprintf("%d more objects can't be written to", len(keys)-i)})
			break
		}
		out = append(out, t.refused[key])
	}
	return out
}
