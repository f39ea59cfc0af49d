package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// MarshalText writes "192.0.2.10" or "node-port/tcp/30080".
func (r Resource) MarshalText() ([]byte, error) {
	if r.Addr.IsValid() {
		return r.Addr.MarshalText()
	}
	return fmt.Appendf(nil, "node-port/%s/%d", r.Protocol, r.NodePort), nil
}

// UnmarshalText reads what MarshalText writes and refuses everything else.
func (r *Resource) UnmarshalText(b []byte) error {
	text := string(b)
	if rest, ok := strings.CutPrefix(text, "node-port/"); ok {
		protocol, number, _ := strings.Cut(rest, "/")
		var p vip.Protocol
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || p.UnmarshalText([]byte(protocol)) != nil {
			return fmt.Errorf("%q is not a node port", text)
		}
		*r = Resource{NodePort: uint16(n), Protocol: p}
	} else {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return fmt.Errorf("%q is not an address", text)
		}
		*r = Resource{Addr: a}
	}
	if canonical, _ := r.MarshalText(); string(canonical) != text {
		return fmt.Errorf("%q is not written as %q", text, canonical)
	}
	return nil
}

// leaseJSON is the stored form of a lease. Fields may be added; readers ignore those they don't
// know.
type leaseJSON struct {
	Resource Resource     `json:"resource"`
	Pool     string       `json:"pool,omitempty"`
	State    string       `json:"state"`
	ShareKey string       `json:"share_key,omitempty"`
	Holders  []holderJSON `json:"holders"`
	Since    vip.Instant  `json:"since"`
	Until    vip.Instant  `json:"until,omitzero"`

	Reservation *reservationJSON `json:"reservation,omitempty"`
}

type reservationJSON struct {
	For   string      `json:"for,omitempty"` // as holderJSON.Service
	Since vip.Instant `json:"since"`
}

type holderJSON struct {
	Service string   `json:"service"` // "namespace/name", the default namespace written out
	Source  string   `json:"source"`
	Port    string   `json:"port,omitempty"`
	Ports   []string `json:"ports,omitempty"`
	Node    string   `json:"node,omitempty"`
}

// MarshalJSON writes the stored form.
func (l Lease) MarshalJSON() ([]byte, error) {
	out := leaseJSON{Resource: l.Resource, Pool: l.Pool, State: l.State.String(), ShareKey: l.ShareKey, Since: l.Since, Until: l.Until}
	for _, h := range l.Holders {
		j := holderJSON{Service: h.Service.Namespace + "/" + h.Service.Name, Source: h.Source, Node: h.Node}
		if h.Port != (vip.PortKey{}) {
			j.Port = h.Port.String()
		}
		for _, p := range h.Ports {
			j.Ports = append(j.Ports, p.String())
		}
		out.Holders = append(out.Holders, j)
	}
	if r := l.Reservation; r != nil {
		out.Reservation = &reservationJSON{Since: r.Since}
		if r.For != (vip.ServiceKey{}) {
			out.Reservation.For = r.For.Namespace + "/" + r.For.Name
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes. A lease that the allocator could not have made is an
// error.
func (l *Lease) UnmarshalJSON(b []byte) error {
	var in leaseJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	if in.Resource == (Resource{}) {
		return errors.New("lease: nothing is leased")
	}
	out, err := in.lease()
	if err == nil {
		err = out.check()
	}
	if err != nil {
		return fmt.Errorf("lease of %s: %w", in.Resource, err)
	}
	*l = out
	return nil
}

func (in *leaseJSON) lease() (out Lease, err error) {
	out = Lease{Resource: in.Resource, Pool: in.Pool, ShareKey: in.ShareKey, Since: in.Since, Until: in.Until}
	if out.State = LeaseState(max(0, slices.Index(leaseStates[:], in.State))); out.State == 0 || out.State == Blocked {
		return out, fmt.Errorf("%q is not a state", in.State)
	}
	for _, j := range in.Holders {
		h := Holder{Source: j.Source, Node: j.Node}
		if h.Service, err = parseService(j.Service); err != nil {
			return out, err
		}
		if j.Port == vip.HealthPortKey.String() {
			h.Port = vip.HealthPortKey
		} else if j.Port != "" {
			h.Port, err = parsePortKey(j.Port)
		}
		for _, p := range j.Ports {
			if err == nil {
				h.Ports = append(h.Ports, vip.PortKey{})
				h.Ports[len(h.Ports)-1], err = parsePortKey(p)
			}
		}
		if err != nil {
			return out, err
		}
		out.Holders = append(out.Holders, h)
	}
	if r := in.Reservation; r != nil {
		out.Reservation = &Reservation{Since: r.Since}
		if r.For != "" {
			if out.Reservation.For, err = parseService(r.For); err != nil {
				return out, fmt.Errorf("reservation: %w", err)
			}
		}
	}
	return out, nil
}

// parseService reads "namespace/name".
func parseService(s string) (k vip.ServiceKey, err error) {
	var named bool
	if k.Namespace, k.Name, named = strings.Cut(s, "/"); !named || k.Name == "" {
		return k, fmt.Errorf("%q is not a service", s)
	}
	return k, nil
}

// check returns an error if the allocator could not have made the lease.
func (l *Lease) check() error {
	switch r := l.Reservation; {
	case r != nil && (l.State == Cooling || !l.Resource.Addr.IsValid()):
		return errors.New("only a held or reserved address may have a reservation")
	case l.State == Reserved && r == nil:
		return errors.New("it is reserved without a reservation")
	case l.State == Reserved:
		if want := l.Unheld(nil).Holders; len(l.Holders) != len(want) || len(want) == 1 && l.Holders[0].Service != r.For {
			return errors.New("its holder is not the service of its reservation")
		}
	case len(l.Holders) == 0:
		return errors.New("it has no holder")
	case len(l.Holders) > 1 && (l.ShareKey == "" || l.State == Cooling):
		return fmt.Errorf("%d holders, but not shared", len(l.Holders))
	}
	return nil
}

// parsePortKey reads "80/tcp" or "10000-10099/tcp".
func parsePortKey(s string) (k vip.PortKey, err error) {
	bad := fmt.Errorf("%q is not a port", s)
	numbers, protocol, _ := strings.Cut(s, "/")
	if k.Protocol.UnmarshalText([]byte(protocol)) != nil {
		return k, bad
	}
	first, last, ranged := strings.Cut(numbers, "-")
	n, err := strconv.ParseUint(first, 10, 16)
	if err != nil || n == 0 {
		return k, bad
	}
	k.Port = uint16(n)
	if !ranged {
		return k, nil
	}
	if n, err = strconv.ParseUint(last, 10, 16); err != nil || uint16(n) <= k.Port {
		return k, bad
	}
	k.LastPort = uint16(n)
	return k, nil
}
