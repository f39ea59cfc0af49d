package status

import "strings"

// hints are what to do about a backend that fails, by a part of the reason that a probe, or a connection
// of a client, gives. The first part that a reason contains counts.
var hints = []struct{ part, hint string }{
	{"connection refused", "start the server on the backend: its host answers, but nothing listens on the port"},
	{"not complete within", "check that the backend's host is up and its server answers, and that no firewall drops packets to the port"},
	{"connection timed out", "check that the backend's host is up, and that no firewall drops packets to the port"},
	{"no answer", "check that the backend's host is up and its server answers, and that no firewall drops packets to the port"},
	{"no route to host", "check that the backend's host is up, and the network between it and this host"},
	{"network is unreachable", "add a route to the backend on this host"},
	{"connection reset", "see the log of the backend's server: it ends connections before it answers"},
	{"connection closed before", "see the log of the backend's server: it ends connections before it answers"},
	{"does not speak TLS", "use a check without TLS, or switch TLS on in the backend's server"},
	{"certificate", "renew the certificate of the backend's server, or change the names that the check accepts"},
	{"status ", "see the log of the backend's server: it answers, but reports that it does not work"},
	{"heartbeat", "start the program that sends the backend's heartbeats"},
}

// HintOf returns what to do about a backend that fails for a reason; "" if that is not known.
func HintOf(reason string) string {
	for _, h := range hints {
		if strings.Contains(reason, h.part) {
			return h.hint
		}
	}
	return ""
}
