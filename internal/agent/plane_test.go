package agent

import (
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/ipvs"
)

// If a module that the rules need is missing, "auto" selects the proxy. If the configuration
// requires IPVS, it is an error that names the module and the fix.
func TestMissingModuleChoosesTheProxy(t *testing.T) {
	all := []ipvs.Finding{
		{Name: "kernel module ip_vs", OK: true, Required: true}, {Name: "nf_tables", OK: true, Required: true},
		{Name: "kernel module nft_masq", Required: true, Detail: "nf_tables has no expression \"masq\"", Remedy: "modprobe nft_masq"},
		{Name: "kernel module nf_conntrack_netlink", Detail: "x", Remedy: "modprobe nf_conntrack_netlink"},
	}
	const reason = `ipvs needs kernel module nft_masq: nf_tables has no expression "masq"`
	for _, c := range []struct {
		mode, role string
		findings   []ipvs.Finding
		useIPVS    bool
		why        string
		err        string
	}{
		{configs.ModeAuto, "", all, false, reason, ""},
		{configs.ModeIPVS, "", all, false, "", reason + "     fix: modprobe nft_masq"},
		{configs.ModeAuto, configs.RoleRealServer, all, false, "", reason + "     fix: modprobe nft_masq"},
		{configs.ModeAuto, "", all[:2], true, "the kernel and this process's rights allow it", ""},
		{configs.ModeIPVS, "", append(all[:2:2], all[3]), true, "the configuration asks for it", ""},
	} {
		useIPVS, why, err := chooseMode(c.mode, c.role, c.findings)
		if useIPVS != c.useIPVS || why != c.why || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("mode %q, role %q: %v, %q, %v", c.mode, c.role, useIPVS, why, err)
		}
	}
}

// Findings are those at the time of the request: those of single frontends appear after the start,
// and fixed ones disappear.
func TestFindingsAreOfNow(t *testing.T) {
	var found []ipvs.Finding
	p := &plane{findings: func() []v1.Finding { return notOK(found) }}
	if got := p.now().Findings; len(got) != 0 {
		t.Errorf("at first: %+v", got)
	}
	found = []ipvs.Finding{{Name: "sysctl a", OK: true}, {Name: "sysctl b", Detail: "is 0", Remedy: "sysctl -w b=1"}}
	want := v1.Finding{Level: v1.LevelWarn, Name: "sysctl b", Message: "is 0", Fix: "sysctl -w b=1"}
	if got := p.now().Findings; len(got) != 1 || got[0] != want {
		t.Errorf("later: %+v, want %+v", got, want)
	}
	found[1].OK = true
	if got := p.now().Findings; len(got) != 0 {
		t.Errorf("after the fix: %+v", got)
	}
}
