package share

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// short writes a verdict as "healthy -a,b without c".
func short(v *Verdict) string {
	if v == nil {
		return "none"
	}
	out := v.Health.String()
	for _, node := range []string{"a", "b", "c", "d", "z"} {
		if _, against := v.Against[node]; against {
			out += " -" + node
		}
	}
	if len(v.Without) > 0 {
		out += " without " + strings.Join(v.Without, ",")
	}
	return out
}

// row reads what short writes.
func row(text string) *Verdict {
	if text == "none" {
		return nil
	}
	v := &Verdict{Against: map[string]Vote{}}
	text, without, _ := strings.Cut(text, " without ")
	if without != "" {
		v.Without = strings.Split(without, ",")
	}
	words := strings.Fields(text)
	if err := v.Health.UnmarshalText([]byte(words[0])); err != nil {
		panic(err)
	}
	for _, w := range words[1:] {
		v.Against[strings.TrimPrefix(w, "-")] = Vote{}
	}
	return v
}

func TestBallot(t *testing.T) {
	for _, c := range []struct {
		me, probers, row string
		own              vip.Health
		want             string
	}{
		// The first result.
		{"a", "abc", "none", vip.Healthy, "begin healthy"},
		{"a", "abc", "none", vip.Unhealthy, "begin unknown -a"},
		{"b", "abc", "unknown -a", vip.Unhealthy, "decide unhealthy"},
		{"b", "abc", "unknown -a", vip.Healthy, "decide healthy"},
		{"a", "a", "none", vip.Unhealthy, "begin unhealthy"},
		{"a", "abc", "none", vip.Unknown, "keep"},
		{"a", "abc", "healthy", vip.Unknown, "keep"},
		// A change takes a majority.
		{"a", "abc", "healthy", vip.Healthy, "keep"},
		{"a", "abc", "healthy", vip.Unhealthy, "object healthy -a"},
		{"a", "abc", "healthy -a", vip.Unhealthy, "keep"},
		{"b", "abc", "healthy -a", vip.Unhealthy, "decide unhealthy"},
		{"c", "abc", "unhealthy", vip.Unhealthy, "keep"},
		{"c", "abc", "unhealthy", vip.Healthy, "object unhealthy -c"},
		{"b", "abc", "unhealthy -c", vip.Healthy, "decide healthy"},
		{"a", "ab", "healthy", vip.Unhealthy, "object healthy -a"},
		{"b", "ab", "healthy -a", vip.Unhealthy, "decide unhealthy"},
		{"a", "abcd", "healthy -b", vip.Unhealthy, "object healthy -a -b"},
		{"c", "abcd", "healthy -a -b", vip.Unhealthy, "decide unhealthy"},
		// A vote is taken back.
		{"a", "abc", "healthy -a", vip.Healthy, "agree healthy"},
		{"a", "abc", "healthy -a -b", vip.Healthy, "agree healthy -b"},
		// Votes of others don't count once they are no probers.
		{"b", "abc", "healthy -z", vip.Unhealthy, "object healthy -b"},
		{"z", "abc", "healthy", vip.Unhealthy, "keep"},
		{"a", "a", "healthy -a -z", vip.Unhealthy, "decide unhealthy"},
		// Hosts without the target have no vote, and the last one removes the row.
		{"a", "abc", "healthy", 0, "abstain healthy without a"},
		{"a", "abc", "healthy -a without c", 0, "abstain healthy without a,c"},
		{"a", "abc", "healthy without a", 0, "keep"},
		{"b", "abc", "healthy without a,c", 0, "conclude"},
		{"a", "abc", "healthy without a,b,c", 0, "conclude"},
		{"a", "abc", "healthy without b,z", 0, "abstain healthy without a,b"},
		{"a", "abc", "none", 0, "keep"},
		{"a", "abc", "healthy without b", vip.Unhealthy, "object healthy -a without b"},
		{"a", "abc", "healthy without b,c", vip.Unhealthy, "decide unhealthy without b,c"},
		{"a", "abc", "healthy without a,b", vip.Healthy, "agree healthy without b"},
		{"a", "abc", "healthy without a,b", vip.Unhealthy, "object healthy -a without b"},
	} {
		b := ballot{me: c.me, probers: strings.Split(c.probers, ""), row: row(c.row), own: finding{health: c.own}}
		before := short(b.row)
		next, do := b.next()
		got := []string{"keep", "begin", "agree", "object", "decide", "abstain", "conclude"}[do]
		if do != keep && do != conclude {
			got += " " + short(&next)
		}
		expect.Equal(t, got, c.want, "%s of %s finds %q with row %q", c.me, c.probers, c.own, c.row)
		expect.Equal(t, short(b.row), before, "the row has changed")
	}
}

// Whatever the order in which probers write, the verdict becomes what most of them find, after at
// most as many writes as there are probers. One prober alone never changes it.
func TestMajorityDecides(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		n := 1 + r.IntN(5)
		probers := []string{"a", "b", "c", "d", "z"}[:n]
		var at *Verdict
		if r.IntN(3) > 0 {
			at = &Verdict{Health: []vip.Health{vip.Healthy, vip.Unhealthy}[r.IntN(2)]}
		}
		first := at
		finds, votes := map[string]vip.Health{}, map[vip.Health]int{}
		for _, p := range probers {
			finds[p] = []vip.Health{vip.Healthy, vip.Unhealthy}[r.IntN(2)]
			votes[finds[p]]++
		}
		writes := 0
		for changed := true; changed; {
			changed = false
			for _, i := range r.Perm(n) {
				b := ballot{me: probers[i], probers: probers, row: at, own: finding{health: finds[probers[i]]}}
				if next, do := b.next(); do != keep {
					at, changed = &next, true
					writes++
				}
			}
			must.AtMost(t, writes, 3*n, "%v: still no end after %d writes: %s", finds, writes, short(at))
		}
		for health, n := range votes {
			if n >= majority(len(probers)) && at.Health != health {
				t.Errorf("%v, from %s: %s", finds, short(first), short(at))
			}
		}
		if first != nil && votes[first.Health] == len(probers)-1 && len(probers) >= 3 && at.Health != first.Health {
			t.Errorf("%v, from %s: one prober has changed it to %s", finds, short(first), short(at))
		}
	}
}

// The key of a target changes with every field of its check but the port, which is in the address.
// Fields that are zero don't count, so that a new one leaves the keys of other checks.
func TestCheckTextHasEveryField(t *testing.T) {
	text := reflect.TypeFor[checkText]()
	for i := range text.NumField() {
		f := text.Field(i)
		if tag := f.Tag.Get("json"); f.Name != "Port" && !strings.HasSuffix(tag, ",omitempty") {
			t.Errorf("%s is not omitted if it is zero", f.Name)
		}
	}
	expect.Equal(t, string(must.Get(json.Marshal(checkText{}))(t)), "{}")
	expect.Equal(t, Key(target(1)), "10.0.0.1:80/tcp-792cafaba491cfe5", "the key has changed")
	path := vip.ProbePath{VIP: netip.MustParseAddr("10.96.0.1"), Backend: target(1).Addr.Addr(), Forward: vip.ForwardDirect}
	keys := map[string]bool{Key(target(1)): true, Key(target(1).Along(path)): true}
	path.Forward = vip.ForwardTunnel
	if keys[Key(target(1).Along(path))] = true; len(keys) != 3 {
		t.Errorf("targets with different paths have one key: %v", keys)
	}
}
