package host

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
)

// A process without rights gets the one line that says so, and none about modules.
func TestErrNamesTheCause(t *testing.T) {
	lacks := Finding{Name: "capability CAP_NET_ADMIN", Required: true, Detail: "not held by this process", Remedy: "run it as root"}
	tables, module := Denied("nf_tables", true, unix.EPERM), TrialOf("nft_ct", "no ct", true, unix.EPERM, unix.ENOENT, unix.EOPNOTSUPP)
	expect.Equal(t, Err([]Finding{lacks, tables, module}).Error(), "the dataplane needs capability CAP_NET_ADMIN: not held by this process", "error")
	expect.Equal(t, Err([]Finding{{OK: true, Required: true}, tables}).Error(), "the dataplane needs nf_tables: not checked: operation not permitted", "error in a user namespace")
	expect.Equal(t, module.Remedy, denied, "remedy")
	expect.True(t, Err([]Finding{{OK: true, Required: true}, Denied("nf_conntrack_netlink", false, unix.EPERM)}) == nil, "what is not required")
}

// Only the errors of a missing module have the advice to load it.
func TestTrialOf(t *testing.T) {
	for _, err := range []error{unix.ENOENT, unix.EOPNOTSUPP} {
		got := TrialOf("nft_ct", "no ct", true, fmt.Errorf("trial: %w", err), unix.ENOENT, unix.EOPNOTSUPP)
		expect.Equal(t, got, MissingModule("nft_ct", "no ct", true), err.Error())
	}
	for _, err := range []error{unix.ENOMEM, unix.ENOBUFS, unix.EMFILE, unix.ETIMEDOUT, context.DeadlineExceeded} {
		got := TrialOf("nft_ct", "no ct", true, err, unix.ENOENT, unix.EOPNOTSUPP)
		expect.Equal(t, got, Finding{Name: "kernel module nft_ct", Required: true, Detail: err.Error()}, err.Error())
	}
}
