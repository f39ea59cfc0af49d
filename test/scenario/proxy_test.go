//go:build linux

package scenario

import (
	"testing"

	"go.uber.org/goleak"
)

// TestProxyOnLoopback needs no privileges. Each frontend has a listener.
// Slow: each scenario starts an agent, and those of health checks wait for several probes.
func TestProxyOnLoopback(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("table", func(t *testing.T) { runTable(t, newLoopback(t, userspace), every()) })
}

// TestProxyInNamespaces runs the table between separate hosts. Clients arrive by sk_lookup.
// Slow: as TestProxyOnLoopback, with twice as many scenarios.
func TestProxyInNamespaces(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(t *testing.T) {
		l := newNamespaces(t, userspace)
		l.skLookup = true
		runTable(t, l, every())
	})
}

// TestListenersInNamespaces runs what TestProxyOnLoopback can't.
// Slow: as TestProxyOnLoopback.
func TestListenersInNamespaces(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(t *testing.T) {
		l := newNamespaces(t, userspace)
		l.onlyIsolated = true
		runTable(t, l, every())
	})
}
