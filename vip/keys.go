package vip

// The functions below return the key that a value contains, for tables.

// KeyOfService returns the key of a service.
func KeyOfService(s *Service) ServiceKey { return s.Key }

// KeyOfAllocation returns the key of the service that an allocation is for.
func KeyOfAllocation(a *Allocation) ServiceKey { return a.Asked.Key }

// KeyOfBackendState returns the key of an override.
func KeyOfBackendState(s *BackendState) OverrideKey { return OverrideKey{s.Backend, s.Group} }

// KeyOfBackendHealth returns the key of the backend.
func KeyOfBackendHealth(h *BackendHealth) BackendKey { return h.Backend }

// KeyOfFrontend returns the key of a frontend.
func KeyOfFrontend(f *Frontend) FrontendKey { return f.Key }
