package gateway

import (
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/vip"
)

// Grant is what the allocator and the source say about a listener's service.
type Grant struct {
	Allocation *vip.Allocation // nil: none yet
	Problems   []vip.Problem   // of its definition
	Former     bool            // it keeps former settings, because its definition is invalid
}

// Status returns the status of the Plan's Gateway. Grants has the state of each listener's service.
func (p *Plan) Status(now time.Time, grants func(vip.ServiceKey) Grant) gatewayapi.GatewayStatus {
	gw := p.Gateway
	out := gatewayapi.GatewayStatus{}
	programmed := condition("Programmed", "", "")
	var vips []netip.Addr
	serves, kept := false, false
	for i := range p.Listeners {
		l := &p.Listeners[i]
		conditions := slices.Clone(l.Conditions)
		is := condition("Programmed", "Invalid", "the listener is refused")
		if l.Service != nil {
			serves = true
			grant := grants(vip.ServiceKey{Namespace: l.Service.Namespace, Name: l.Service.Name})
			var whole metav1.Condition
			if is, whole = programs(&grant); is.Reason == "Pending" { // unknown: the former answer stays
				is, kept = formerly(formerOf(gw, l.Name), is), true
				whole = formerly(gw.Status.Conditions, whole)
			}
			if programmed.Status == metav1.ConditionTrue {
				programmed = whole
			}
			if grant.Allocation != nil {
				vips = append(vips, grant.Allocation.VIPs...)
				if at := slices.IndexFunc(grant.Allocation.Problems, func(p vip.Problem) bool { return p.Code == vip.CodePortTaken }); at >= 0 && len(grant.Allocation.VIPs) == 0 {
					conditions[0] = condition("Accepted", "PortUnavailable", "%s", grant.Allocation.Problems[at].Message)
				}
			}
		}
		status := gatewayapi.ListenerStatus{Name: l.Name, AttachedRoutes: int32(l.Attached), SupportedKinds: []gatewayapi.RouteGroupKind{}}
		for _, kind := range l.Kinds {
			status.SupportedKinds = append(status.SupportedKinds, gatewayapi.RouteGroupKind{Group: nonempty(gatewayapi.Group), Kind: kind})
		}
		status.Conditions = since(formerOf(gw, l.Name), append(conditions, is), gw.Generation, now)
		out.Listeners = append(out.Listeners, status)
	}
	switch why := p.refused(); {
	case why != "":
		programmed = condition("Programmed", "Invalid", "%s; listeners keep the settings that they had", why)
	case !serves:
		programmed = condition("Programmed", "Invalid", "no listener is valid")
	}
	if kept && len(vips) == 0 {
		out.Addresses = gw.Status.Addresses
	}
	slices.SortFunc(vips, netip.Addr.Compare) // IPv4 first
	for _, addr := range slices.Compact(vips) {
		out.Addresses = append(out.Addresses, gatewayapi.Address{Type: nonempty("IPAddress"), Value: addr.String()})
	}
	out.Conditions = since(gw.Status.Conditions, []metav1.Condition{p.Accepted, programmed}, gw.Generation, now)
	return out
}

// formerOf returns the conditions of a listener in the status of its Gateway.
func formerOf(gw *gatewayapi.Gateway, listener string) []metav1.Condition {
	for i := range gw.Status.Listeners {
		if gw.Status.Listeners[i].Name == listener {
			return gw.Status.Listeners[i].Conditions
		}
	}
	return nil
}

// formerly returns the former condition of a type if it is good, else the condition.
func formerly(before []metav1.Condition, now metav1.Condition) metav1.Condition {
	for _, c := range before {
		if c.Type == now.Type && c.Status == metav1.ConditionTrue {
			return c
		}
	}
	return now
}

// programs returns the condition Programmed of a listener and, as far as the listener decides about that, of its Gateway.
func programs(g *Grant) (listener, gateway metav1.Condition) {
	both := func(listener, gateway, message string) (metav1.Condition, metav1.Condition) {
		return condition("Programmed", listener, "%s", message), condition("Programmed", gateway, "%s", message)
	}
	switch {
	case g.Allocation != nil && len(g.Allocation.VIPs) > 0:
		if g.Former && len(g.Problems) > 0 {
			return condition("Programmed", "", ""), condition("Programmed", "Invalid", "%s", g.Problems[0].Error())
		}
		for i := range g.Allocation.Problems { // of other addresses than it has
			switch p := &g.Allocation.Problems[i]; p.Code {
			case vip.CodeOutsidePool, vip.CodeAddressTaken:
				return condition("Programmed", "", ""), condition("Programmed", "AddressNotUsable", "%s", p.Message)
			case vip.CodePoolFull, vip.CodeNoPool, vip.CodeQuota:
				return condition("Programmed", "", ""), condition("Programmed", "AddressNotAssigned", "%s", p.Message)
			}
		}
		return both("", "", "")
	case g.Allocation == nil && len(g.Problems) > 0:
		return both("Invalid", "Invalid", g.Problems[0].Error())
	case g.Allocation == nil || len(g.Allocation.Problems) == 0:
		return both("Pending", "Pending", "the listener waits for its address")
	}
	p := &g.Allocation.Problems[0]
	switch p.Code {
	case vip.CodeWaiting, vip.CodeStore, vip.CodeHeldBack:
		return both("Pending", "Pending", p.Message)
	case vip.CodeOutsidePool, vip.CodeAddressTaken:
		return both("Invalid", "AddressNotUsable", p.Message)
	default:
		return both("Invalid", "AddressNotAssigned", p.Message)
	}
}

// RouteStatus returns the status of a route with the parents of ours that were decided, in any order. The parents of other
// controllers stay.
func RouteStatus(r *gatewayapi.Route, parents []gatewayapi.RouteParentStatus, now time.Time) gatewayapi.RouteStatus {
	if len(parents) == 0 && len(r.Status.Parents) == 0 {
		return r.Status
	}
	out := gatewayapi.RouteStatus{Parents: []gatewayapi.RouteParentStatus{}}
	for _, p := range r.Status.Parents {
		if p.ControllerName != Controller {
			out.Parents = append(out.Parents, p)
		}
	}
	for i := range r.Spec.ParentRefs { // in the order of the route
		for _, p := range parents {
			if !same(p.ParentRef, r.Spec.ParentRefs[i]) {
				continue
			}
			var former []metav1.Condition
			for _, was := range r.Status.Parents {
				if was.ControllerName == Controller && same(was.ParentRef, p.ParentRef) {
					former = was.Conditions
				}
			}
			p.Conditions = since(former, p.Conditions, r.Generation, now)
			out.Parents = append(out.Parents, p)
			break
		}
	}
	return out
}

// AcceptsClass returns the condition Accepted of a GatewayClass of ours.
func AcceptsClass(c *gatewayapi.GatewayClass) metav1.Condition {
	if len(c.Spec.ParametersRef) > 0 {
		return condition("Accepted", "InvalidParameters", "spec.parametersRef is not supported")
	}
	return condition("Accepted", "", "")
}

// ClassStatus returns the status of a GatewayClass of ours.
func ClassStatus(c *gatewayapi.GatewayClass, now time.Time) gatewayapi.ClassStatus {
	return gatewayapi.ClassStatus{Conditions: since(c.Status.Conditions, []metav1.Condition{AcceptsClass(c)}, c.Generation, now)}
}

// since returns the conditions with those of other types that were there before, and with the times of their last changes.
func since(before, now []metav1.Condition, generation int64, at time.Time) []metav1.Condition {
	out := make([]metav1.Condition, 0, len(now))
	for _, c := range now {
		c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(at.UTC().Truncate(time.Second))
		for i := range before {
			if before[i].Type == c.Type && before[i].Status == c.Status {
				c.LastTransitionTime = before[i].LastTransitionTime
			}
		}
		out = append(out, c)
	}
	for i := range before {
		if _, ours := good[before[i].Type]; !ours && before[i].Type != Superseded {
			out = append(out, before[i])
		}
	}
	return out
}

// same reports whether two values have the same JSON.
func same[T any](a, b T) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(x) == string(y)
}
