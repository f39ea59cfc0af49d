package doctor

import (
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
)

// The agent's word about the firewall holds until a reading of the rules finds nothing, not if they can't be read.
func TestCurrentChecks(t *testing.T) {
	checks := []v1.Check{{Name: "sources"}, {Name: "firewall"}}
	for level, want := range map[Level]int{OK: 1, Warn: 2} {
		expect.Len(t, current(checks, []Finding{{Level: level, Check: "firewall"}}), want, level)
	}
	expect.Len(t, current(checks, nil), 2, "without pools")
}
