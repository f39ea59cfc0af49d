package statuswriter

import (
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// Prefix begins the namespaces of a cluster's Services in ironvip.
type Prefix string

// Name returns the name in ironvip of a Service.
func (p Prefix) Name(of vip.ServiceKey) vip.ServiceKey {
	return vip.ServiceKey{Namespace: string(p) + of.Namespace, Name: of.Name}
}

// Service is the reverse of Name. Is is false for a name that no Service of the cluster can have.
func (p Prefix) Service(name vip.ServiceKey) (of vip.ServiceKey, is bool) {
	name.Namespace, is = strings.CutPrefix(name.Namespace, string(p))
	return name, is
}

// Object is a Service that a source knows, and the problems with its definition. The Service is
// shared and must not be changed.
type Object struct {
	Key      vip.ServiceKey
	Service  *corev1.Service
	Problems []vip.Problem
}

// Objects is the table of the Services that a source knows, and of its other objects with a status. It has each Service that matches the
// configured namespaces and selector, whatever its type or class. They lack managedFields and the
// annotation with kubectl's copy of the Service. The source is its only writer.
type Objects struct {
	*table.Table[vip.ServiceKey, Object]
	Documents *table.Table[DocumentKey, Document]
	inTouch   atomic.Bool
	touched   wake.Signal // has an element after inTouch has changed
}

// NewObjects returns an empty table.
func NewObjects() *Objects {
	same := func(a, b Object) bool { return a.Service == b.Service && slices.Equal(a.Problems, b.Problems) }
	return &Objects{Table: table.New(&table.Clock{}, func(o *Object) vip.ServiceKey { return o.Key }, same), touched: wake.New(),
		Documents: table.New(&table.Clock{}, func(d *Document) DocumentKey { return d.Key }, nil)}
}

// Store stores the newest object of a Service.
func (o *Objects) Store(s *corev1.Service) {
	key := vip.ServiceKey{Namespace: s.Namespace, Name: s.Name}
	row, _, _ := o.Get(key)
	row.Key, row.Service = key, s
	o.Set(row)
}

// Describe stores the problems with a Service's definition.
func (o *Objects) Describe(key vip.ServiceKey, problems []vip.Problem) {
	if row, _, there := o.Get(key); there {
		row.Problems = problems
		o.Set(row)
	}
}

// SetInTouch records whether all objects have been read and the server can be reached. Only then, a
// Service that is not in the table does not exist in the cluster, according to the newest data.
func (o *Objects) SetInTouch(in bool) {
	if o.inTouch.Swap(in) == in {
		return
	}
	o.touched.Set()
}

// InTouch returns what SetInTouch has recorded.
func (o *Objects) InTouch() bool { return o.inTouch.Load() }
