//go:build linux && !vm

package scenario

import (
	"testing"

	"go.uber.org/goleak"
)

// TestProxyOnLoopback needs no privileges.
func TestProxyOnLoopback(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("table", func(t *testing.T) { runTable(t, newLoopback(t, userspace)) })
}

// TestProxyInNamespaces runs the table between separate hosts.
func TestProxyInNamespaces(t *testing.T) {
	inNamespace(t, func(t *testing.T) { runTable(t, newNamespaces(t, userspace)) })
}
