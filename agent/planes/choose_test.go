package planes

import (
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Mode auto takes the first of ipvs, nft and proxy that can run, but keeps the one that the host ran before. If the
// configuration requires one that can't, it is an error that names what is missing and the fix.
func TestChoose(t *testing.T) {
	lacks := func(module string) []host.Finding {
		return []host.Finding{{Name: "nf_tables", OK: true, Required: true},
			{Name: "kernel module " + module, Required: true, Detail: "the kernel has none", Remedy: "modprobe " + module}, {Name: "sysctl x", Detail: "is 0"}}
	}
	has := map[string][]host.Finding{}
	noIPVS := map[string][]host.Finding{configs.ModeIPVS: lacks("ip_vs")}
	noNFT := map[string][]host.Finding{configs.ModeNFT: lacks("nft_numgen")}
	neither := map[string][]host.Finding{configs.ModeIPVS: lacks("ip_vs"), configs.ModeNFT: lacks("nft_numgen")}
	const (
		all    = "the kernel and this process's rights allow it"
		asked  = "the configuration asks for it"
		ipvsNo = "ipvs can't run: the dataplane needs kernel module ip_vs: the kernel has none"
		nftNo  = "nft can't run: the dataplane needs kernel module nft_numgen: the kernel has none"
		too    = `this host ran it before; ipvs can run, too: dataplane.mode = "ipvs" selects it`
	)
	for _, c := range []struct {
		mode, role, before string
		found              map[string][]host.Finding
		want, why, err     string
	}{
		{"auto", "", "", has, "ipvs", all, ""},
		{"auto", "", "", noNFT, "ipvs", all, ""},
		{"auto", "", "", noIPVS, "nft", ipvsNo, ""},
		{"auto", "", "", neither, "proxy", ipvsNo + "; " + nftNo, ""},
		{"auto", "", "ipvs", has, "ipvs", all, ""},
		{"auto", "", "nft", has, "nft", too, ""},
		{"auto", "", "proxy", has, "proxy", too, ""},
		{"auto", "", "nft", noIPVS, "nft", ipvsNo, ""},
		{"auto", "", "off", noIPVS, "nft", ipvsNo, ""},
		{"off", "", "nft", neither, "off", asked, ""},
		{"auto", "", "of a later version", has, "ipvs", all, ""},
		{"auto", "", "proxy", noIPVS, "proxy", ipvsNo + `; this host ran it before; nft can run, too: dataplane.mode = "nft" selects it`, ""},
		{"auto", "", "nft", noNFT, "ipvs", "nft, which this host ran before, can't run any more", ""},
		{"auto", "", "ipvs", noIPVS, "nft", ipvsNo + "; ipvs, which this host ran before, can't run any more", ""},
		{"ipvs", "", "nft", has, "ipvs", asked, ""},
		{"nft", "", "", has, "nft", asked, ""},
		{"proxy", "", "", neither, "proxy", asked, ""},
		{"ipvs", "", "", noIPVS, "", "", "needs kernel module ip_vs: the kernel has none     fix: modprobe ip_vs"},
		{"nft", "", "", noNFT, "", "", "needs kernel module nft_numgen: the kernel has none     fix: modprobe nft_numgen"},
		{"auto", configs.RoleRealServer, "", has, "ipvs", "a real server needs it", ""},
		{"auto", configs.RoleRealServer, "", noIPVS, "", "", "needs kernel module ip_vs: the kernel has none     fix: modprobe ip_vs"},
	} {
		got, err := choose(c.mode, c.role, c.before, func(mode string) []host.Finding { return c.found[mode] })
		if got.Mode != c.want || err == nil && got.Why != c.why || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("mode %q, role %q, before %q: %+v, %v", c.mode, c.role, c.before, got, err)
		}
	}
}

// Without the rights to check anything, the capability is all that a preferred dataplane lacks.
func TestLacksTheKnownCauseOnly(t *testing.T) {
	found := []host.Finding{{Name: "capability CAP_NET_ADMIN", Required: true}, {Name: "kernel module ip_vs", Required: true, Unknown: true}, {Name: "nf_tables", Required: true, Unknown: true}}
	got, err := choose(configs.ModeAuto, "", "", func(mode string) []host.Finding {
		if mode == configs.ModeIPVS {
			return found
		}
		return nil
	})
	if err != nil || got.Mode != configs.ModeNFT || len(got.Lacks) != 1 || got.Lacks[0] != found[0] {
		t.Errorf("%+v, %v", got, err)
	}
}

// A lack of several dataplanes is told once.
func TestLacksAreToldOnce(t *testing.T) {
	both, one := host.MissingModule("nft_ct", "none", true), host.MissingModule("ip_vs", "none", true)
	found := map[string][]host.Finding{configs.ModeIPVS: {one, both}, configs.ModeNFT: {both}}
	got, err := choose(configs.ModeAuto, "", "", func(mode string) []host.Finding { return found[mode] })
	must.Succeed(t, err)
	expect.SameList(t, got.Lacks, []host.Finding{one, both})
}

// Findings are those at the time of the request: those of single frontends appear after the start,
// and fixed ones disappear.
func TestFindingsAreOfNow(t *testing.T) {
	var found []ipvs.Finding
	d := &dataplane{Opened: plane.Opened{Findings: func() []ipvs.Finding { return found }}}
	expect.Empty(t, d.now().Findings, "at first")
	found = []ipvs.Finding{{Name: "sysctl a", OK: true}, {Name: "sysctl b", Detail: "is 0", Remedy: "sysctl -w b=1"}}
	want := v1.Finding{Level: v1.LevelWarn, Name: "sysctl b", Message: "is 0", Fix: "sysctl -w b=1"}
	if got := d.now().Findings; len(got) != 1 || got[0] != want {
		t.Errorf("later: %+v, want %+v", got, want)
	}
	found[1].OK = true
	expect.Empty(t, d.now().Findings, "after the fix")
}
