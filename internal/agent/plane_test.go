package agent

import (
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/ipvs"
)

// What a host lacks for its dataplane is told as it is when somebody asks: what is
// needed for single frontends shows later than the start, and what was mended goes.
func TestFindingsAreOfNow(t *testing.T) {
	var found []ipvs.Finding
	p := &plane{findings: func() []ipvs.Finding { return found }}
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
		t.Errorf("once it is mended: %+v", got)
	}
}
