package vip

import (
	"encoding/json"
	"testing"
)

// Policies are numbers in memory and words wherever they are written: drains
// under way are kept on disk with them.
func TestPoliciesAreWrittenAsWords(t *testing.T) {
	type policies struct {
		Traffic      TrafficPolicy
		Masquerade   Masquerade
		Distribution TrafficDistribution
	}
	for want, p := range map[string]policies{
		`{"Traffic":"","Masquerade":"","Distribution":""}`:                     {},
		`{"Traffic":"cluster","Masquerade":"auto","Distribution":"any"}`:       {Cluster, MasqueradeAuto, DistributeAny},
		`{"Traffic":"local","Masquerade":"always","Distribution":"same-zone"}`: {Local, MasqueradeAlways, PreferSameZone},
		`{"Traffic":"local","Masquerade":"never","Distribution":"same-node"}`:  {Local, MasqueradeNever, PreferSameNode},
		`{"Traffic":"local","Masquerade":"own","Distribution":"same-node"}`:    {Local, MasqueradeOwn, PreferSameNode},
	} {
		text, err := json.Marshal(p)
		if err != nil || string(text) != want {
			t.Errorf("%s is written, want %s, %v", text, want, err)
		}
		var back policies
		if err := json.Unmarshal([]byte(want), &back); err != nil || back != p {
			t.Errorf("%s is read as %+v, %v", want, back, err)
		}
	}
	for _, wrong := range []string{`{"Traffic":"near"}`, `{"Masquerade":"Auto"}`, `{"Distribution":"2"}`} {
		if err := json.Unmarshal([]byte(wrong), &policies{}); err == nil {
			t.Errorf("%s is read", wrong)
		}
	}
	if got := MasqueradeOwn + 1; got.String() != "vip.Masquerade(5)" {
		t.Errorf("an unknown one is %q", got)
	}
}
