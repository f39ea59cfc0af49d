package vip

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// written checks the JSON and the text of values.
func written[V comparable](t *testing.T, words map[string]V) {
	t.Helper()
	for want, v := range words {
		if text, err := json.Marshal(v); err != nil || string(text) != `"`+want+`"` || fmt.Sprint(v) != want {
			t.Errorf("%s is written and %v reported, want %q, %v", text, v, want, err)
		}
		var back V
		if err := json.Unmarshal([]byte(`"`+want+`"`), &back); err != nil || back != v {
			t.Errorf("%s is read as %v, %v", want, back, err)
		}
	}
}

// Stores have these names.
func TestNumbersAreWrittenAsWords(t *testing.T) {
	for i, word := range strings.Fields("rr wrr lc wlc sh mh sed nq fo dh other") {
		var s Scheduler
		if err := json.Unmarshal([]byte(`"`+word+`"`), &s); err != nil || int(s) != i+1 {
			t.Errorf("%s is read as %s, %v", word, s, err)
		}
		written(t, map[string]Scheduler{word: s})
		asked := slices.Contains(Schedulers(), s)
		expect.True(t, asked != (s == OtherScheduler), "a service may ask for %s: %t", s, asked)
	}
	written(t, map[string]Forward{"": 0, "nat": ForwardNAT, "dr": ForwardDirect, "tunnel": ForwardTunnel})
	written(t, map[string]ProxyVersion{"": 0, "v1": ProxyV1, "v2": ProxyV2})
	written(t, map[string]State{"": 0, "ready": Ready, "drain": Drain, "maint": Maint, "terminating": Terminating})
	s, f, state := MaglevHash, ForwardDirect, Maint
	if s.UnmarshalText([]byte("magic")) == nil || f.UnmarshalText([]byte("NAT")) == nil || state.UnmarshalText([]byte("asleep")) == nil {
		t.Error("unknown words are read")
	}
	if s != MaglevHash || f != ForwardDirect || state != Maint {
		t.Error("unknown words change something")
	}
}

// Policies are numbers in memory and names in every document, such as the drains kept on disk.
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
		expect.True(t, json.Unmarshal([]byte(wrong), &policies{}) != nil, "%s is read", wrong)
	}
	got := MasqueradeOwn + 1
	expect.Equal(t, got.String(), "vip.Masquerade(5)", "an unknown one is %q", got)
}

// A service's families keep their order.
func TestFamilies(t *testing.T) {
	seen := map[Families]bool{}
	for _, list := range [][]Family{nil, {IPv4}, {IPv6}, {IPv4, IPv6}, {IPv6, IPv4}} {
		f := FamiliesOf(list...)
		if got := f.List(); !slices.Equal(got, list) || seen[f] || (f == 0) != (len(list) == 0) {
			t.Errorf("%v becomes %#x and that %v", list, f, got)
		}
		seen[f] = true
	}
}
