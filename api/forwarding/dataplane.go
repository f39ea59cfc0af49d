package forwarding

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

type switchDataplaneInput struct {
	Mode   string `query:"mode" required:"true" doc:"the new dataplane"`
	DryRun bool   `query:"dry_run" doc:"change nothing and return a plan"`
	Force  bool   `query:"force" doc:"also if the new dataplane does not support what services use"`
}

func (h *Handlers) switchDataplane(ctx context.Context, in *switchDataplaneInput) (v1.SwitchPlan, error) {
	ctx, cancel := readingTime(ctx)
	defer cancel()
	return h.Switch(ctx, in.Mode, in.Force, in.DryRun)
}

func (h *Handlers) getDataplane(context.Context, *struct{}) (v1.Dataplane, error) {
	return h.State(), nil
}

// State returns the dataplane's state in the API's form. It costs O(frontends with trouble).
func (h *Handlers) State() v1.Dataplane {
	about, stats := h.Dataplane(), h.Stats()
	out := v1.Dataplane{Mode: about.Mode, Reason: about.Reason, Level: v1.LevelOK, Ready: stats.Synced,
		DesiredRevision: stats.DesiredRev, AppliedRevision: stats.AppliedRev, Frontends: stats.Wanted,
		Contested: stats.Contested, Repairs: stats.DriftRepairs, LastResync: request.When(stats.LastResync), Problems: []v1.Problem{}, Findings: append([]v1.Finding{}, about.Findings...), Switching: about.Switching, Leaving: append([]v1.LeavingDataplane{}, about.Leaving...)}
	list := func(f *vip.Frontend, p vip.Problem) {
		if len(out.Problems) < maxProblems {
			p.Service, p.Place = f.Service.String(), cmp.Or(p.Place, f.Key.String())
			out.Problems = append(out.Problems, p)
		}
	}
	out.Backends = h.trouble.Ends()
	h.trouble.EachFrontend(func(f *status.Frontend) {
		switch {
		case f.Pending():
			out.Pending++
		case f.Applied.Problem != nil:
			out.Failed++
			list(&f.Frontend, *f.Applied.Problem)
		case f.Applied.Warning != nil:
			list(&f.Frontend, *f.Applied.Warning)
		}
	})
	slices.SortFunc(out.Problems, func(a, b v1.Problem) int { return strings.Compare(a.Place, b.Place) })
	counts := fmt.Sprintf("%s, %s", text.Plural(h.trouble.Served(), "service"), text.Plural(out.Backends, "backend"))
	switch {
	case stats.TargetError != "":
		out.Level, out.Summary = v1.LevelFail, "unreachable: "+stats.TargetError
	case !stats.Synced:
		out.Level, out.Summary = v1.LevelWarn, "starting: first full reconcile not finished"
	case out.Failed > 0:
		first := slices.IndexFunc(out.Problems, func(p v1.Problem) bool { return p.Code != vip.CodeContested })
		out.Level, out.Summary = v1.LevelWarn, fmt.Sprintf("%d of %s refused: %s", out.Failed, text.Plural(out.Frontends, "frontend"), out.Problems[max(first, 0)].Message)
	case out.Contested > 0:
		out.Level, out.Summary = v1.LevelWarn, text.Plural(out.Contested, "frontend")+" contested: "+contestedText(out.Problems)
	case stats.CleanError != "":
		out.InSync = out.Pending == 0
		out.Level, out.Summary = v1.LevelWarn, "connections with removed backends don't end: "+stats.CleanError
	case out.Pending > 0:
		out.Summary = fmt.Sprintf("%d of %s pending", out.Pending, text.Plural(out.Frontends, "frontend"))
	default:
		out.InSync, out.Summary = true, "in sync: "+counts
	}
	for _, f := range out.Findings {
		if out.Level == v1.LevelOK && f.Level != v1.LevelOK {
			out.Level = v1.LevelWarn
		}
	}
	return out
}

// contestedText returns the problem of the first contested frontend. Foreign entries that keep
// returning have no row and therefore no problem.
func contestedText(problems []v1.Problem) string {
	if len(problems) == 0 {
		return "another program keeps adding entries that ironvip removed; run ironvip events"
	}
	return problems[0].Place + ": " + problems[0].Message
}

// maxProblems bounds a list of problems for display.
const maxProblems = 100

type listFrontendsInput struct {
	request.Paging
	Service string `query:"service" doc:"of this service only: \"name\" or \"namespace/name\""`
}

func (h *Handlers) listFrontends(_ context.Context, in *listFrontendsInput) (out v1.FrontendList, err error) {
	out.Revision = max(h.Tables.Frontends.Revision(), h.Tables.Applied.Revision())
	var of vip.ServiceKey
	if in.Service != "" {
		if of, err = request.ServiceParameter(in.Service); err != nil {
			return out, err
		}
	}
	wanted := request.Keys(h.Tables.Frontends.All(), func(f *vip.Frontend) bool { return in.Service == "" || f.Service == of })
	out.Items, out.Next, err = request.Page(in.Paging, frontendOrder, wanted, func(k vip.FrontendKey) (v1.Frontend, bool) {
		row, ok := h.frontend(k)
		return row, ok && (in.Service == "" || row.Service == of.String()) // else another service has it now
	})
	return out, err
}

var frontendOrder = request.Order[vip.FrontendKey]{List: "frontends", Compare: vip.CompareFrontendKeys}

func (h *Handlers) frontend(key vip.FrontendKey) (v1.Frontend, bool) {
	fs, ok := h.Tables.Frontend(key)
	if !ok {
		return v1.Frontend{}, false
	}
	f := &fs.Frontend
	address, _, _ := strings.Cut(key.String(), "/") // "192.0.2.10:10000-10099"
	out := v1.Frontend{Address: address, Protocol: key.Protocol.String(), Kind: f.Kind.String(), Service: f.Service.String(),
		Port: f.Port, Scheduler: f.Scheduler.String(), Forward: f.Forward.String(), Masquerade: f.Masquerade.String(),
		Revision: fs.Rev, Backends: request.Convert(f.Backends, func(e vip.Endpoint) v1.Endpoint {
			return v1.Endpoint{Address: request.EndpointID(e.Addr), Weight: uint32(e.Weight), MaxConnections: e.MaxConnections, LeavingAt: request.When(e.Leaving.Time())}
		})}
	for _, flag := range []struct {
		set  bool
		name string
	}{{f.SchedulerFallback, "fallback"}, {f.SchedulerPort, "port"}, {f.OnePacket, "one-packet"}} {
		if flag.set {
			out.Flags = append(out.Flags, flag.name)
		}
	}
	if key.Audience != vip.Everyone {
		out.Audience = key.Audience.String()
	}
	out.Sources = prefixes(f.SourceRanges)
	if key.Protocol == vip.TCP {
		relay := f.Relay.Get()
		out.Proxy, out.ProxyFrom = relay.ProxyProtocol.String(), prefixes(relay.AcceptProxyFrom)
	}
	if f.Affinity > 0 {
		out.Affinity = spec.Duration(f.Affinity).String()
	}
	if a := fs.Applied; a != nil {
		out.AppliedRevision, out.AppliedAt = a.Tried.Rev, request.When(a.At.Time())
		out.Applied = a.Tried.Rev >= fs.Rev && a.Problem == nil
		out.Problem, out.Warning = a.Problem, a.Warning
	}
	return out, true
}

func (h *Handlers) diffDataplane(ctx context.Context, in *request.LongPaging) (out v1.DataplaneDiff, err error) {
	ctx, cancel := readingTime(ctx)
	defer cancel()
	found, err := h.Diff(ctx)
	if err != nil {
		return out, unreadable("read", err)
	}
	out.InSync = len(found) == 0
	found, out.Next, err = request.List(request.Paging(*in), frontendOrder.Of("diff"), found, func(d *Difference) vip.FrontendKey { return d.Key })
	out.Items = request.Convert(found, diffEntry)
	return out, err
}

// readingTime bounds a read or repair of the dataplane. 50,000 backends take a few seconds.
func readingTime(ctx context.Context) (context.Context, context.CancelFunc) {
	const most = 2 * time.Minute
	server.Allow(ctx, most+request.AnswerTime)
	return context.WithTimeout(ctx, most)
}

func unreadable(what string, err error) error {
	detail := what + " the dataplane: " + err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		detail = what + " the dataplane: timed out"
	}
	return server.Refuse(http.StatusServiceUnavailable, v1.CodeDataplane, detail, "ironvip dataplane show shows its state")
}

func diffEntry(d Difference) v1.DiffEntry {
	out := v1.DiffEntry{Frontend: d.Key.String(), Details: append([]string{}, d.Damage...)}
	switch {
	case d.Have == nil:
		out.Action, out.Service = v1.ActionAdd, d.Want.Service.String()
		out.Details = append(out.Details, "is missing")
	case d.Want == nil:
		out.Action = v1.ActionRemove
		out.Details = append(out.Details, "is not desired")
	default:
		out.Action, out.Service = v1.ActionChange, d.Want.Service.String()
		if len(d.Damage) > 0 {
			out.Action = v1.ActionRepair
		}
		if d.Have.Scheduler == 0 && len(d.Damage) > 0 {
			break // nothing to compare with; the damage says so
		}
		out.Details = append(out.Details, frontendDetails(d.Want, d.Have)...)
		if len(out.Details) == 0 {
			out.Details = otherDetails(d.Want, d.Have)
		}
	}
	return out
}

// prefixes returns the texts of a list, nil for an empty one.
func prefixes(in []netip.Prefix) []string {
	if len(in) == 0 {
		return nil
	}
	return request.Convert(in, netip.Prefix.String)
}

// differences lists the differing properties of a frontend.
type differences []string

func (d *differences) compare(what string, want, have any) {
	if want != have {
		*d = append(*d, fmt.Sprintf("%s is %v, not %v", what, have, want))
	}
}

// frontendDetails returns how two frontends differ. It compares only fields that every dataplane
// programs, because a dataplane reports an arbitrary value for other fields.
func frontendDetails(want, have *vip.Frontend) (out differences) {
	if have.Scheduler != vip.OtherScheduler { // the damage has more details
		out.compare("scheduler", want.Scheduler, have.Scheduler)
	}
	out.compare("affinity", want.Affinity, have.Affinity)
	undesired := map[netip.AddrPort]uint32{}
	for _, e := range have.Backends {
		undesired[e.Addr] = uint32(e.Weight)
	}
	for _, e := range want.Backends {
		weight, there := undesired[e.Addr]
		delete(undesired, e.Addr)
		if !there {
			out = append(out, fmt.Sprintf("backend %s is missing", request.EndpointID(e.Addr)))
		} else if weight != uint32(e.Weight) {
			out = append(out, fmt.Sprintf("backend %s has weight %d, not %d", request.EndpointID(e.Addr), weight, e.Weight))
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(undesired), netip.AddrPort.Compare) {
		out = append(out, fmt.Sprintf("backend %s is not desired", request.EndpointID(addr)))
	}
	return out
}

// otherDetails compares fields that some dataplanes don't program. It is called if the fields of
// frontendDetails are equal although the frontends differ.
func otherDetails(want, have *vip.Frontend) (out differences) {
	out.compare("masquerade", want.Masquerade, have.Masquerade)
	out.compare("forward", want.Forward, have.Forward)
	out.compare("fallback", want.SchedulerFallback, have.SchedulerFallback)
	out.compare("hashing of ports", want.SchedulerPort, have.SchedulerPort)
	out.compare("one-packet", want.OnePacket, have.OnePacket)
	if !slices.Equal(want.SourceRanges, have.SourceRanges) {
		out = append(out, fmt.Sprintf("%d source ranges differ from the %d desired", len(have.SourceRanges), len(want.SourceRanges)))
	}
	if w, h := want.Relay.Get(), have.Relay.Get(); w.ProxyProtocol != h.ProxyProtocol || !slices.Equal(w.AcceptProxyFrom, h.AcceptProxyFrom) {
		out = append(out, "proxy_protocol or accept_proxy_from differs")
	}
	if want.Kind != have.Kind {
		out = append(out, fmt.Sprintf("recorded as another kind, not as %s", want.Kind))
	}
	return out
}

func (h *Handlers) repairDataplane(ctx context.Context, _ *struct{}) (v1.RepairResult, error) {
	ctx, cancel := readingTime(ctx)
	defer cancel()
	out := v1.RepairResult{Items: []v1.DiffEntry{}, Problems: []v1.Problem{}}
	found, err := h.Repair(ctx)
	if err != nil {
		return out, unreadable("repair", err)
	}
	for _, d := range found {
		applied, _, _ := h.Tables.Applied.Get(d.Key)
		if applied.Problem == nil {
			out.Items = append(out.Items, diffEntry(d))
			continue
		}
		p := *applied.Problem
		p.Place = cmp.Or(p.Place, d.Key.String())
		out.Problems = append(out.Problems, p)
	}
	out.Repaired = len(out.Items)
	slices.SortFunc(out.Items, func(a, b v1.DiffEntry) int { return strings.Compare(a.Frontend, b.Frontend) })
	return out, nil
}
