package vip

import "net/netip"

// PassiveKey identifies a row of the passive table: one address and port that a service's clients
// are sent to.
type PassiveKey struct {
	Service  ServiceKey
	Protocol Protocol
	Addr     netip.AddrPort
}

// PassiveHealth is what the connections of clients through the userspace proxy showed of one
// address of a service: a row of the passive table. There is no row without evidence.
type PassiveHealth struct {
	PassiveKey
	Health Health // Healthy: a backend answered there; or Ejected
	Since  Instant
	// Until is when the proxy sends the next client there, if it is Ejected. It stays Ejected until
	// that client's connection works.
	Until  Instant
	Reason string // why it is Ejected: "connect: connection refused (3 times)"
}

// KeyOfPassiveHealth returns the key of the address.
func KeyOfPassiveHealth(h *PassiveHealth) PassiveKey { return h.PassiveKey }
