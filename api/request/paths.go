package request

import (
	"github.com/ironvip/ironvip/api/server"
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
