package services

import (
	"cmp"
	"math"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// input reads everything that the status of one service depends on. It costs O(one service).
func (h *Handlers) input(key vip.ServiceKey) status.Input { return h.Tables.Input(key, time.Now()) }

// report returns the status of one service, and what it was computed from; false if the service
// doesn't exist.
func (h *Handlers) report(key vip.ServiceKey) (in status.Input, out status.Report, ok bool) {
	in = h.input(key)
	if in.Service == nil {
		return in, out, false
	}
	return in, status.Of(in), true
}

// Service returns one service in the API's form.
func (h *Handlers) Service(key vip.ServiceKey) (v1.Service, bool) {
	in, report, ok := h.report(key)
	if !ok {
		return v1.Service{}, false
	}
	out := v1.Service{
		Spec: spec.FromService(*in.Service), Source: in.Service.Source, Origin: in.Service.Origin,
		Revision: in.Rev, ETag: etag(in.ServiceRev, in.Rev),
		Status: v1.ServiceStatus{
			State: string(report.State), Revision: in.Rev, SpecRev: in.ServiceRev, Applied: report.Applied,
			VIPs: []netip.Addr{}, Ports: ports(&in), Backends: h.backends(&in, &report.Uses), Groups: h.groups(&in, &report.Uses), Usable: report.Ready,
			Panic: report.Panics, Held: report.Held, Full: h.Proxy().Services[key].Full,
			Problems: server.Problems(report.Problems),
		},
	}
	if len(report.Lines) > 0 {
		out.Status.Summary = report.Lines[0]
	}
	if a := in.Allocation; a != nil {
		out.Status.VIPs = append(out.Status.VIPs, a.VIPs...)
		out.Status.Pool, out.Status.Health = a.Pool, a.NodePorts[vip.HealthPortKey]
		out.Status.Since = request.When(a.Since.Time())
	}
	for _, n := range in.Names {
		if !n.Lost {
			out.Status.Names = append(out.Status.Names, n.Name)
		}
	}
	return out, true
}

// Summary returns one service as a row of a list. It leaves out what costs most: the single backends.
func (h *Handlers) Summary(key vip.ServiceKey) (v1.ServiceSummary, bool) {
	in := h.input(key)
	if in.Service == nil {
		return v1.ServiceSummary{}, false
	}
	report := status.Short(in)
	out := v1.ServiceSummary{Name: key.String(), Source: in.Service.Source, State: string(report.State), Summary: report.Lines[0], VIPs: []netip.Addr{},
		Ports: v1.PortsByProtocol(ports(&in), v1.PortStatus.Numbers), Usable: report.Ready, Backends: report.Total, Labels: in.Service.Labels}
	if a := in.Allocation; a != nil {
		out.VIPs, out.Since = append(out.VIPs, a.VIPs...), request.When(a.Since.Time())
	}
	return out, true
}

func ports(in *status.Input) []v1.PortStatus {
	return request.Convert(in.Service.Ports, func(p vip.Port) v1.PortStatus {
		row := v1.PortStatus{Name: p.Name, Protocol: p.Protocol.String(), Port: p.Port, LastPort: p.LastPort, TargetPort: p.TargetPort}
		if in.Allocation != nil {
			row.NodePort = in.Allocation.NodePorts[p.Key()]
		}
		return row
	})
}

func (h *Handlers) backends(in *status.Input, uses *status.Uses) []v1.BackendStatus {
	heartbeats := h.Registrar.HeartbeatStatuses(in.Key)
	out := make([]v1.BackendStatus, 0, len(in.Service.Backends))
	for i := range in.Service.Backends {
		b, use := &in.Service.Backends[i], &uses.Backends[i]
		row := v1.BackendStatus{ID: b.ID(), Address: b.Address.String(), Port: b.Port, Weight: b.Weight, Group: b.Group,
			State: b.State.String(), Backup: b.Backup, Node: b.Node, Zone: b.Zone, MaxConnections: b.MaxConnections,
			Ports: b.Ports.List(), ForZones: b.ForZones.List(), ForNodes: b.ForNodes.List()}
		if o, overridden := in.Override(b.Key(in.Key)); overridden {
			row.State = o.String()
			if set, _, ok := h.Tables.Overrides.Get(vip.OverrideKey{BackendKey: b.Key(in.Key)}); ok {
				info := overrideInfo(&set)
				row.Override = &info
			}
		}
		row.Usable = in.Usable(b) && !in.Ejected(b)
		row.SlowStart, row.Serving = use.Percent, use.TakesNew && !in.Ejected(b)
		addHealth(&row, in, b)
		h.addLastError(&row, in, b)
		if row.HealthReason != "" || row.Held {
			row.HealthHint = status.HintOf(cmp.Or(row.HealthReason, row.LastError))
		}
		if row.State != b.State.String() {
			row.SourceState = b.State.String()
		}
		row.LeavingAt = request.When(use.LeavingAt.Time())
		if h, ok := heartbeats[row.ID]; ok {
			addHeartbeat(&row, h)
		}
		out = append(out, row)
	}
	for _, e := range uses.Removed { // these still have connections
		out = append(out, v1.BackendStatus{ID: request.EndpointID(e.Addr), Address: e.Addr.Addr().String(), Port: e.Addr.Port(),
			State: vip.Drain.String(), Removed: true, LeavingAt: request.When(e.Leaving.Time())})
	}
	return out
}

func (h *Handlers) groups(in *status.Input, uses *status.Uses) []v1.GroupStatus {
	var out []v1.GroupStatus
	total := 0.0
	for i := range in.Service.Groups {
		g := &in.Service.Groups[i]
		row, serving := v1.GroupStatus{Name: g.Name, Weight: in.GroupWeight(g)}, false
		if set, _, ok := h.Tables.Overrides.Get(vip.OverrideKey{BackendKey: vip.BackendKey{Service: in.Key}, Group: g.Name}); ok {
			info := overrideInfo(&set)
			row.SourceWeight, row.Override = &g.Weight, &info
		}
		for j := range in.Service.Backends {
			b := &in.Service.Backends[j]
			if b.Group != g.Name {
				continue
			}
			row.Backends++
			if in.Usable(b) && !in.Ejected(b) {
				row.Usable++
			}
			serving = serving || uses.Backends[j].TakesNew
		}
		if serving {
			row.Share = float64(row.Weight)
			total += row.Share
		}
		out = append(out, row)
	}
	for i := range out {
		if total > 0 {
			out[i].Share = math.Round(1000*out[i].Share/total) / 10
		}
	}
	return out
}

// addHealth adds what was observed of a backend, apart from its configured state.
func addHealth(row *v1.BackendStatus, in *status.Input, b *vip.Backend) {
	health, check := in.Observed(b)
	if held := in.HeldCheck(b); held != nil && health == vip.Healthy {
		check, row.Held, row.HeldUntil = held, true, request.When(held.HeldUntil.Time())
	}
	row.Health = health.String()
	if b.Health == vip.Unhealthy {
		row.HealthReason = b.Reason.Text(in.Now)
	}
	if check != nil {
		row.Check, row.HealthSince = check.Type.String(), request.When(check.Since.Time())
		row.HealthReason = cmp.Or(row.HealthReason, check.Reason)
		return
	}
	passive := in.PassiveOf(b)
	if passive != nil && (health == vip.Ejected || b.Health == 0) {
		row.Check, row.HealthSince, row.HealthReason = "passive", request.When(passive.Since.Time()), passive.Reason
		row.EjectedUntil = request.When(passive.Until.Time())
		return
	}
	if b.Health != 0 {
		row.Check = "source"
	}
}

// recentError is how long after its last failure a backend that works shows it.
const recentError = 10 * time.Minute

// addLastError adds why a probe or a connection of a client last failed. While the backend is
// unhealthy, ejected or held, that is the reason of its health, which ignores a single other failure.
func (h *Handlers) addLastError(row *v1.BackendStatus, in *status.Input, b *vip.Backend) {
	var at vip.Instant
	var why string
	if h.LastFailure != nil {
		at, why = h.LastFailure(in.Service, b)
	}
	if failures := h.Proxy().Failures; len(failures) > 0 {
		var n reconcile.Failures
		var few [2]vip.PassiveKey
		for _, key := range in.AppendAddresses(few[:0], b) {
			n.Add(failures[key])
		}
		if n.Last.After(at) {
			at, why = n.Last, n.Reason
		}
	}
	switch {
	case row.HealthReason != "":
		row.LastError = row.HealthReason
		if row.Check != "source" && b.Health != vip.Unhealthy { // when a source saw its last failure is not known
			row.LastErrorAt = request.When(at.Time())
		}
	case why != "" && in.Now.Sub(at.Time()) < recentError:
		row.LastError, row.LastErrorAt = why, request.When(at.Time())
	}
}

func addHeartbeat(row *v1.BackendStatus, h rest.HeartbeatStatus) {
	row.TTL, row.Keeper = spec.Duration(h.TTL).String(), h.Owner
	if !h.Missed {
		row.ExpiresAt = request.When(h.Due)
	}
	row.RemovedAt = request.When(h.Removed)
}
