package api

// routes adds every route, and then renders the document that lists them.
func (s *Server) routes() {
	s.serviceRoutes()
	s.backendRoutes()
	s.statsRoutes()
	s.leaseRoutes()
	s.sourceRoutes()
	s.dataplaneRoutes()
	s.configRoutes()
	s.eventRoutes()
	s.nodeRoutes()
	s.fleetRoutes()
	s.debugRoutes()
}
