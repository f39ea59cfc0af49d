package request

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// ServicePath identifies a service. Inputs embed it, so it is exported: huma ignores unexported
// fields.
type ServicePath struct {
	Namespace string `path:"namespace"`
	Name      string `path:"name"`
}

func (p ServicePath) Key() vip.ServiceKey {
	return vip.ServiceKey{Namespace: p.Namespace, Name: p.Name}
}

// ServiceParameter reads the parameter "service" of a query.
func ServiceParameter(name string) (vip.ServiceKey, error) {
	key, err := vip.ParseServiceKey(name)
	if err != nil {
		return key, server.BadRequest(err.Error(), "use NAME or NAMESPACE/NAME", vip.Problem{Code: vip.CodeInvalid, Field: "query.service", Message: err.Error()})
	}
	return key, nil
}

// BackendPath identifies a backend. Inputs embed it, so it is exported: huma ignores unexported
// fields.
type BackendPath struct {
	ServicePath
	ID string `path:"id" doc:"address:port, or address; IPv6 with a port as [address]:port"`
}

func (p BackendPath) Backend() (vip.BackendKey, error) {
	addr, port, err := vip.ParseBackendID(p.ID)
	if err != nil {
		return vip.BackendKey{}, server.BadRequest(err.Error(), "use ADDRESS:PORT, for example 10.1.0.11:8080",
			vip.Problem{Code: vip.CodeInvalid, Field: "path.id", Message: err.Error()})
	}
	return vip.BackendKey{Service: p.Key(), Address: addr, Port: port}, nil
}

// Existing is Backend for a backend that exists: it also accepts the other ids that ironvip prints.
// These are the address and port of an endpoint, as in events and counters, of a backend on the
// service's target ports; and the address alone, if no other backend has it. A key of no backend is
// returned as it is. Registrations don't use it: for them, both ids are different backends.
func (p BackendPath) Existing(services table.Reader[vip.ServiceKey, vip.Service]) (vip.BackendKey, error) {
	key, err := p.Backend()
	if err != nil {
		return key, err
	}
	row := services.Row(key.Service)
	if row == nil {
		return key, nil
	}
	var found []vip.BackendKey
	var ids []string
	for i := range row.Value.Backends {
		b := &row.Value.Backends[i]
		own := b.Key(key.Service)
		if own == key {
			return key, nil
		}
		if b.Address != key.Address || key.Port != 0 && !listens(&row.Value, b, key.Port) {
			continue
		}
		found, ids = append(found, own), append(ids, own.ID())
	}
	switch len(found) {
	case 0:
		return key, nil
	case 1:
		return found[0], nil
	}
	return key, server.Refuse(http.StatusConflict, v1.CodeAmbiguousBackend, fmt.Sprintf("%s is not one backend of service %q: it has %s",
		key.ID(), key.Service, strings.Join(ids, " and ")), "use one of "+strings.Join(ids, ", "))
}

// listens reports whether a backend without a port of its own serves a port of the service at this
// number.
func listens(s *vip.Service, b *vip.Backend, number uint16) bool {
	return b.Port == 0 && slices.ContainsFunc(s.Ports, func(p vip.Port) bool {
		return b.Serves(p.Name) && b.Endpoint(p.TargetPort).Port() == number
	})
}

// EndpointID returns where a backend serves a frontend. It is only the address if the port is the
// one that the client connects to.
func EndpointID(at netip.AddrPort) string {
	return vip.BackendKey{Address: at.Addr(), Port: at.Port()}.ID()
}

// AddressPath identifies an address.
type AddressPath struct {
	IP string `path:"ip"`
}

// Address returns the address.
func (p AddressPath) Address() (netip.Addr, error) {
	addr, err := netip.ParseAddr(p.IP)
	if err != nil {
		return addr, server.BadRequest("\""+p.IP+"\" is not an address", "use an IPv4 or IPv6 address",
			vip.Problem{Code: vip.CodeInvalid, Field: "path.ip", Message: "is not an address"})
	}
	return addr.Unmap(), nil
}
