package api

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ironvip/ironvip/api/addresses"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// nodesTimeout bounds how long a search waits for the nodes of a fleet, which are read from its store.
const nodesTimeout = 300 * time.Millisecond

// nodesAge is how old the nodes in a search may be: one that follows each key must not read the store for each.
const nodesAge = 2 * time.Second

// maxSearch bounds the text of a search, in characters.
const maxSearch = 100

func (s *Server) searchRoutes() {
	server.HandleJSON(s.http, server.Route{Path: v1.PathSearch, Need: access.View, ID: "search", Tag: "services", Summary: "Find objects by a part of a name or address",
		Description: "Services, VIPs, backends (by address or node), nodes, pools and DNS names, without regard to case: first exact matches, then names that begin with the text, then the others."}, s.search)
}

type searchInput struct {
	Text  string `query:"q" doc:"required: a part of a name, of an address, or of address:port; 1 to 100 characters"`
	Limit int    `query:"limit" minimum:"1" maximum:"100" default:"20" doc:"the best matches"`
}

// search costs O(services + backends + names + leases), and computes the state of the results only.
func (s *Server) search(ctx context.Context, in *searchInput) (v1.SearchResult, error) {
	f := newFinder(in.Text)
	if f.text == "" || utf8.RuneCountInString(in.Text) > maxSearch {
		return v1.SearchResult{}, server.BadRequest("q must have 1 to 100 characters", "use a part of a name or address, such as q=web",
			vip.Problem{Code: vip.CodeInvalid, Field: "query.q", Message: "must have 1 to 100 characters"})
	}
	for k, v := range s.Tables.Services.All() {
		f.service(k, &v)
	}
	for n := range s.Tables.Naming.Names() {
		if r := f.rank(n.Name); r < nothing {
			f.offer(v1.KindName, r, match{name: n.Name, service: n.Service, state: addresses.NameState(&n), detail: text.Join(n.VIPs, ", ", netip.Addr.String)})
		}
	}
	for r, l := range s.Addresses.Leases.All() {
		f.lease(r, l)
	}
	for _, p := range s.Addresses.Pools() {
		f.offer(v1.KindPool, f.rank(p.Name), match{name: p.Name, detail: text.Join(p.CIDRs, ", ", netip.Prefix.String)})
	}
	out := v1.SearchResult{Matches: []v1.SearchMatch{}}
	nodes, _, err := s.nodes.Get(ctx, nodesAge, func(ctx context.Context) (v1.NodeList, error) {
		ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
		defer cancel()
		return s.Nodes.List(ctx)
	})
	if err != nil {
		out.Missing = append(out.Missing, v1.KindNode)
	}
	for _, n := range nodes.Items {
		f.offer(v1.KindNode, f.rank(n.Name), match{name: n.Name, state: n.State, detail: n.Dataplane})
	}
	for _, m := range f.best(in.Limit) {
		out.Matches = append(out.Matches, s.matchView(&m))
	}
	return out, nil
}

// match is a found object. Objects of a service get their state once they are among the best.
type match struct {
	rank          quality
	kind          int // of kinds
	name          string
	service       vip.ServiceKey
	backend       int // of the service
	state, detail string
}

// kinds are the kinds of matches in the order of matches that are alike.
var kinds = []string{v1.KindService, v1.KindVIP, v1.KindBackend, v1.KindNode, v1.KindPool, v1.KindName}

// quality is how good a match is: the lower, the better.
type quality int

const (
	exactly quality = iota
	beginsWith
	contains
	nothing
)

// finder collects the matches of a text.
type finder struct {
	text string         // in lower case
	at   netip.AddrPort // the same, if it is an address and a port
	all  []match
}

func newFinder(text string) *finder {
	f := &finder{text: strings.ToLower(strings.TrimSpace(text))}
	if a, err := netip.ParseAddr(strings.Trim(f.text, "[]")); err == nil { // one spelling of several
		f.text = a.Unmap().String()
	} else if at, err := netip.ParseAddrPort(f.text); err == nil {
		f.at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		f.text = f.at.String()
	}
	return f
}

// rank returns how good a match a name is.
func (f *finder) rank(name string) quality {
	name = strings.ToLower(name)
	switch place := strings.Index(name, f.text); {
	case place < 0:
		return nothing
	case len(name) == len(f.text):
		return exactly
	case place == 0:
		return beginsWith
	}
	return contains
}

// rankService returns how good a match the name of a service is. A text with a slash also matches the
// namespace that names in the default namespace omit; another text, such as "default", would match all of them.
func (f *finder) rankService(k vip.ServiceKey) quality {
	if strings.Contains(f.text, "/") {
		return f.rank(k.Namespace + "/" + k.Name)
	}
	return min(f.rank(k.Name), f.rank(k.String()))
}

// rankAddress returns how good a match an address, or an address and a port, is.
func (f *finder) rankAddress(addr netip.Addr, port uint16) quality {
	if f.at.IsValid() && f.at.Addr() != addr { // the text has a port: nothing else can contain it
		return nothing
	}
	best := f.rank(addr.String())
	if port != 0 {
		whole := netip.AddrPortFrom(addr, port).String()
		best = min(best, f.rank(whole), f.rank(strings.TrimPrefix(whole, "[")))
	}
	return best
}

// service looks at a service and its backends.
func (f *finder) service(k vip.ServiceKey, v *vip.Service) {
	f.offer(v1.KindService, f.rankService(k), match{service: k})
	for i := range v.Backends {
		b := &v.Backends[i]
		r := f.rankAddress(b.Address, b.Port)
		if b.Port == 0 && f.at.IsValid() && f.at.Addr() == b.Address && slices.ContainsFunc(v.Ports, func(p vip.Port) bool { return p.TargetPort == f.at.Port() }) {
			r = exactly // an event or a counter names it with a port of the service
		}
		if b.Node != "" { // a node itself is a better match
			r = min(r, f.rank(b.Node)+1)
		}
		f.offer(v1.KindBackend, r, match{name: b.ID(), service: k, backend: i})
	}
}

// lease looks at the lease of an address.
func (f *finder) lease(r ipam.Resource, l *ipam.Lease) {
	if !r.Addr.IsValid() {
		return
	}
	rank := f.rankAddress(r.Addr, 0)
	if f.at.IsValid() && f.at.Addr() == r.Addr {
		rank = beginsWith // one of its ports
	}
	m := match{name: r.Addr.String(), state: l.State.String()}
	if len(l.Holders) > 0 {
		m.service = l.Holders[0].Service
	}
	if l.Pool != "" {
		m.detail = "pool " + l.Pool
	}
	f.offer(v1.KindVIP, rank, m)
}

// offer adds a match, if it is one.
func (f *finder) offer(kind string, r quality, m match) {
	if r < nothing {
		m.rank, m.kind = r, slices.Index(kinds, kind)
		f.all = append(f.all, m)
	}
}

// best returns the best matches, the best first.
func (f *finder) best(limit int) []match {
	slices.SortFunc(f.all, compareMatches)
	all := slices.CompactFunc(f.all, func(a, b match) bool { return compareMatches(a, b) == 0 }) // a table may show a row that changes twice
	return all[:min(limit, len(all))]
}

func compareMatches(a, b match) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name), a.service.Compare(b.service))
}

// matchView returns a match in the API's form.
func (s *Server) matchView(m *match) v1.SearchMatch {
	out := v1.SearchMatch{Kind: kinds[m.kind], Name: m.name, State: m.state, Detail: m.detail}
	if m.service != (vip.ServiceKey{}) {
		out.Service = m.service.String()
	}
	switch out.Kind {
	case v1.KindService:
		out.Name = out.Service
		if row, ok := s.services.Summary(m.service); ok {
			out.State, out.Detail = row.State, strings.TrimSpace(text.Join(row.VIPs, ", ", netip.Addr.String)+" "+row.Ports)
		}
	case v1.KindBackend:
		if in := s.Tables.Input(m.service, time.Now()); in.Service != nil && m.backend < len(in.Service.Backends) {
			out.State, out.Detail = stateOfBackend(&in, &in.Service.Backends[m.backend])
		}
	}
	return out
}

// stateOfBackend returns the state of a backend, or its health if it is ready, and where it is.
func stateOfBackend(in *status.Input, b *vip.Backend) (state, place string) {
	state = in.StateOf(b).String()
	if health, _ := in.Observed(b); in.StateOf(b) == vip.Ready {
		state = health.String()
	}
	if b.Node != "" {
		place = "node " + b.Node
	}
	return state, place
}
