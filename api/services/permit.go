package services

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
)

// permit returns the check of the services that the caller of a request writes; nil permits all.
func permit(ctx context.Context) func(vip.Service) error {
	if !server.OnlyRegisters(ctx) {
		return nil
	}
	return func(s vip.Service) error {
		for _, name := range s.Hostnames.List() {
			if !server.AllowsHostname(ctx, name) {
				return server.Refuse(http.StatusForbidden, v1.CodeForbidden, fmt.Sprintf("hostname %s is not one that the caller may use", name),
					"ask an admin for a token with it (ironvip token create --hostname), or for hostnames in [[api.role]]")
			}
		}
		for i := range s.Backends {
			if p := permitBackend(ctx, s.Backends[i].Address); p != nil {
				return p
			}
		}
		return nil
	}
}

// permitBackend returns why the caller of a request may not register a backend, or nil.
func permitBackend(ctx context.Context, a netip.Addr) *server.Problem {
	if server.AllowsBackend(ctx, a) {
		return nil
	}
	return server.Refuse(http.StatusForbidden, v1.CodeForbidden, fmt.Sprintf("backend %s has an address that the caller may not use", a),
		"ask an admin for a token with its range (ironvip token create --backend), or for backends in [[api.role]]; loopback and link-local addresses need a range of their own")
}
