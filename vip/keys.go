package vip

// Tables keep a value by the key that is in it, which these tell.

// KeyOfService returns the key of a service.
func KeyOfService(s *Service) ServiceKey { return s.Key }

// KeyOfAllocation returns the key of the service that an allocation answers.
func KeyOfAllocation(a *Allocation) ServiceKey { return a.Asked.Key }

// KeyOfBackendState returns the key of the backend that a state is of.
func KeyOfBackendState(s *BackendState) BackendKey { return s.Backend }

// KeyOfFrontend returns the key of a frontend.
func KeyOfFrontend(f *Frontend) FrontendKey { return f.Key }
