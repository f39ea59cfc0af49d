//go:build linux && long

package firewall_test

func init() { samples = 2000 }
