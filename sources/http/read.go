package http

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/draft"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// document is what was read of an answer.
type document struct {
	services map[vip.ServiceKey]vip.Service // valid ones
	refused  map[vip.ServiceKey]struct{}    // with a usable name, and mistakes
	nameless bool                           // a service has no usable name or namespace, so a missing one may be in the document
	problems vip.Problems
}

// services returns the services that are in effect with a document, and its problems. The error is that of a document that
// is no list of services.
func (s *Source) services(body []byte, pools []spec.Pool) ([]vip.Service, []vip.Problem, error) {
	before := s.before()
	d := document{services: map[vip.ServiceKey]vip.Service{}, refused: map[vip.ServiceKey]struct{}{}}
	n := 0
	found, err := spec.ReadList(body, func(raw json.RawMessage) error {
		s.service(&d, n, raw, pools, before)
		n++
		return nil
	})
	switch p, is := errors.AsType[vip.Problem](err); {
	case is && p.Hint != "":
		return nil, nil, fmt.Errorf("%w: %s", p, p.Hint)
	case err != nil:
		return nil, nil, err
	case !found:
		return nil, nil, errors.New(`has no list of services: an empty one is {"services": []}`)
	}
	for key, old := range before {
		_, refused := d.refused[key]
		if _, has := d.services[key]; !has && (refused || d.nameless) {
			d.services[key] = old
		}
	}
	s.last = d.services
	return slices.AppendSeq(make([]vip.Service, 0, len(d.services)), maps.Values(d.services)), d.problems.List(), nil
}

// before returns the services in effect.
func (s *Source) before() map[vip.ServiceKey]vip.Service {
	if s.last == nil {
		s.last = map[vip.ServiceKey]vip.Service{}
		for _, service := range s.o.Prior() {
			s.last[service.Key] = service
		}
	}
	return s.last
}

// service reads the service with an index in the document.
func (s *Source) service(d *document, index int, raw []byte, pools []spec.Pool, before map[vip.ServiceKey]vip.Service) {
	place := strict.Index("services", index)
	written, problems := spec.DecodeJSON(raw)
	unsure := written.Namespace == "" && slices.ContainsFunc(problems, func(p vip.Problem) bool { return p.Field == "namespace" || p.Code == vip.CodeUnknownKey })
	written.Namespace, written.Pool = cmp.Or(written.Namespace, s.o.ServiceNamespace), cmp.Or(written.Pool, s.o.Pool)
	built, problems := written.BuildIn(pools, s.o.Name, s.place, problems)
	_, twice := d.services[built.Key]
	_, refused := d.refused[built.Key]
	if twice || refused {
		problems = append(problems, sources.Duplicate(built.Key, s.place, s.place))
	}
	switch {
	case len(problems) == 0:
		d.services[built.Key] = built
		return
	case built.Key == (vip.ServiceKey{}) || unsure:
		d.nameless = true
	case !twice:
		d.refused[built.Key] = struct{}{}
		if _, kept := before[built.Key]; kept {
			draft.KeepsFormer(problems)
		}
	}
	for _, p := range problems {
		p.Place, p.Service = s.place, cmp.Or(written.Title(), place) // a problem without a service is one of the whole document
		p.Field = strings.TrimSuffix(place+"."+p.Field, ".")
		d.problems.Add(p)
	}
}
