package cli

import (
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/test/expect"
)

// A problem that the line of its check has already is in no line of its own. Another one is, also if
// its text is part of that line.
func TestProblemsAreShownOnce(t *testing.T) {
	const lost, other = "DNS queries are not answered at 192.0.2.1:53: no interface of this host has the address", "DNS queries are not answered at 192.0.2.1:5"
	s := v1.NodeStatus{Ready: true, Checks: []v1.Check{
		{Name: "dns", Level: v1.LevelWarn, Message: lost + ", and 1 more", Hint: "add it", InMessage: 1, Problems: []v1.Problem{
			{Message: lost, Hint: "add it"}, {Message: other, Hint: "add it"}}},
		{Name: "store", Level: v1.LevelWarn, Message: "not a value", Problems: []v1.Problem{{Place: "leases/a", Message: "not a value"}}},
	}}
	findings := fromStatus(s)
	if len(findings) != 5 || findings[1].Text != "dns: "+lost+", and 1 more" || findings[2].Text != "dns: "+other || findings[4].Text != "store: leases/a: not a value" {
		t.Errorf("%+v", findings)
	}
	if text := checksText(&output.Printer{}, s.Checks); strings.Count(text, lost) != 1 || strings.Count(text, other) != 2 || strings.Count(text, "not a value") != 2 {
		t.Errorf("%s", text)
	}
}

// The agent's word about the firewall holds until a reading of the rules finds nothing, not if they can't be read.
func TestCurrentChecks(t *testing.T) {
	checks := []v1.Check{{Name: "sources"}, {Name: "firewall"}}
	for level, want := range map[doctor.Level]int{doctor.OK: 1, doctor.Warn: 2} {
		expect.Len(t, current(checks, []doctor.Finding{{Level: level, Check: "firewall"}}), want, level)
	}
	expect.Len(t, current(checks, nil), 2, "without pools")
}
