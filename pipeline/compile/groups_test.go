package compile

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// grouped is a service with the groups "s" and "c" of these weights. Words are backends from 10.1.0.1 up: the group, and a
// weight and a state unless they are 1 and ready: "s", "c*3", "c*1 drain".
func grouped(stable, canary uint32, words ...string) vip.Service {
	return service(func(s *vip.Service) {
		s.Groups, s.Backends = []vip.Group{{Name: "s", Weight: stable}, {Name: "c", Weight: canary}}, nil
		for i, word := range words {
			spec, state, _ := strings.Cut(word, " ")
			b := be(fmt.Sprintf("10.1.0.%d", i+1), strings.Fields(state)...)
			b.Group = spec[:1]
			if _, weight, stated := strings.Cut(spec, "*"); stated {
				fmt.Sscan(weight, &b.Weight)
			}
			s.Backends = append(s.Backends, b)
		}
	})
}

// Each rule for the shares of groups has its rows here. want is as in TestChoice: the weights are whole numbers without a
// common divisor.
func TestGroups(t *testing.T) {
	for _, tc := range []struct {
		name    string
		service vip.Service
		change  func(*Input)
		want    string
	}{
		{name: "one backend each", service: grouped(90, 10, "s", "c"), want: "1*9 2*1"},
		{name: "more backends have no more of the share", service: grouped(90, 10, "s", "c", "c", "c"), want: "1*27 2*1 3*1 4*1"},
		{name: "few backends of the larger group", service: grouped(50, 50, "s", "s", "s", "c"), want: "1*1 2*1 3*1 4*3"},
		{name: "sizes without a common divisor", service: grouped(90, 10, "s", "s", "s", "s", "s", "s", "s", "c", "c", "c"), want: "1*27 2*27 3*27 4*27 5*27 6*27 7*27 8*7 9*7 10*7"},
		{name: "within a group by their own weights", service: grouped(90, 10, "s*2", "s*1", "c*500", "c*100"), want: "1*36 2*18 3*5 4*1"},
		{name: "a backend without a weight", service: grouped(90, 10, "s*0", "s", "c"), want: "1*0 2*9 3*1"},
		{name: "a draining one", service: grouped(90, 10, "s", "s", "c", "c drain"), want: "1*9 2*9 3*2 4*0"},
		{name: "unhealthy ones", service: grouped(90, 10, "s", "s", "s", "c"),
			change: func(in *Input) { in.Health = observed(map[byte]string{1: "unhealthy", 2: "unhealthy"}) }, want: "1*0 2*0 3*9 4*1"},
		{name: "a group without a usable one", service: grouped(90, 10, "s", "s", "c"),
			change: func(in *Input) { in.Health = observed(map[byte]string{3: "unhealthy"}) }, want: "1*1 2*1 3*0"},
		{name: "the larger group without a usable one", service: grouped(90, 10, "s", "c"),
			change: func(in *Input) { in.Health = observed(map[byte]string{1: "unhealthy"}) }, want: "1*0 2*1"},
		{name: "all are down", service: grouped(90, 10, "s", "c"),
			change: func(in *Input) { in.Health = observed(map[byte]string{1: "unhealthy", 2: "unhealthy"}) }, want: "1*0 2*0"},
		{name: "panic ignores health", service: grouped(90, 10, "s", "s", "c"),
			change: func(in *Input) {
				in.Service.PanicThreshold, in.Health = 50, observed(map[byte]string{1: "unhealthy", 3: "unhealthy"})
			}, want: "1*9 2*9 3*2"},
		{name: "a group with weight 0", service: grouped(90, 0, "s", "c"), want: "1*1 2*0"},
		{name: "a group with weight 0 is no substitute", service: grouped(90, 0, "s drain", "c"), want: "1*0 2*0"},
		{name: "terminating ones beside a group with weight 0", service: grouped(90, 0, "s terminating", "c"), want: "1*1 2*0"},
		{name: "both with weight 0", service: grouped(0, 0, "s", "c"), want: "1*0 2*0"},
		{name: "an empty group", service: grouped(90, 10, "s", "s"), want: "1*1 2*1"},
		{name: "terminating ones beside ready ones of another group", service: grouped(90, 10, "s terminating", "c"), want: "1*0 2*1"},
		{name: "terminating ones alone", service: grouped(90, 10, "s terminating", "c terminating"), want: "1*9 2*1"},
		{name: "a backup has nothing of the share of its group", service: grouped(90, 10, "s", "c", "c"),
			change: func(in *Input) { in.Service.Backends[2].Backup = true }, want: "1*9 2*1 3*0"},
		{name: "those of this node", service: grouped(90, 10, "s ready n1", "s ready n2", "c ready n1"),
			change: func(in *Input) { in.Service.ExternalTraffic, in.Service.InternalTraffic = vip.Local, vip.Local }, want: "1*9 3*1"},
		{name: "those of this zone", service: grouped(90, 10, "s ready - za", "c ready - zb", "s ready - za"),
			change: func(in *Input) { in.Service.Distribution = vip.PreferSameZone }, want: "1*1 3*1"},
		{name: "room for a slow start", service: grouped(90, 10, "s", "c"), change: func(in *Input) { in.Service.SlowStart = 9 }, want: "1*9 2*1"},
		{name: "an operator's weight", service: grouped(90, 10, "s", "c"),
			change: func(in *Input) {
				in.Regroup = func(k vip.OverrideKey) (uint32, bool) { return 30, k.Group == "c" && k.Service == in.Service.Key }
			}, want: "1*3 2*1"},
		{name: "an operator's weight 0", service: grouped(90, 10, "s", "c"),
			change: func(in *Input) {
				in.Regroup = func(k vip.OverrideKey) (uint32, bool) { return 0, k.Group == "s" }
			}, want: "1*0 2*1"},
		{name: "a group that the source has dropped", service: grouped(3, 1, "s", "c", "x"), want: "1*3 2*1 3*1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input(tc.service, "192.0.2.10")
			in.Node = here()
			if tc.change != nil {
				tc.change(&in)
			}
			got, problems := Service(in)
			if len(got) != 1 || len(problems) > 0 {
				t.Fatalf("%v, %v", show(got), problems)
			}
			expect.NoDiff(t, gocmp.Diff(tc.want, short(got[0].Backends)))
		})
	}
}

// A group of a port and address is that of the backend there, whatever else is at the address.
func TestGroupOfAnAddress(t *testing.T) {
	s := grouped(90, 10, "s", "c", "c")
	for i := range s.Backends {
		s.Backends[i].Address = addr("10.1.0.1")
	}
	s.Backends[1].Port, s.Backends[2].Port = 81, 82
	got, _ := Service(input(s, "192.0.2.10"))
	expect.SameList(t, show(got), []string{"192.0.2.10:80/tcp vip http 10.1.0.1:81*1 10.1.0.1:82*1 10.1.0.1:8080*18"})
}

// Each endpoint has its share of the connections within 1 % of it, in as small weights as possible: no more than 1000 unless
// that is not possible.
func TestSharesOfGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		largest := rapid.SampledFrom([]uint32{1, 5, 100}).Draw(t, "largest weight")
		s, shares := service(), []float64{}
		s.Backends = nil
		for g := range rapid.IntRange(1, vip.MaxGroups).Draw(t, "groups") {
			group := vip.Group{Name: fmt.Sprint("g", g), Weight: rapid.Uint32Range(1, largest).Draw(t, "group weight")}
			s.Groups = append(s.Groups, group)
			own := rapid.SliceOfN(rapid.Uint32Range(1, largest), 1, 3).Draw(t, "weights")
			sum := 0.0
			for _, w := range own {
				sum += float64(w)
			}
			for _, w := range own {
				s.Backends = append(s.Backends, vip.Backend{Address: addr(fmt.Sprintf("10.1.%d.%d", len(s.Backends)>>8, len(s.Backends)&255)), Weight: w, Group: group.Name})
				shares = append(shares, float64(group.Weight)*float64(w)/sum)
			}
		}
		got, _ := Service(input(s, "192.0.2.10"))
		total, all := 0.0, 0.0
		for i, e := range got[0].Backends {
			total, all = total+float64(e.Weight), all+shares[i]
		}
		for i, e := range got[0].Backends {
			share, want := float64(e.Weight)/total, shares[i]/all
			if slices.Max(shares) < 655*slices.Min(shares) && math.Abs(share-want) > want/100 || math.Abs(share-want) > 0.01 {
				t.Fatalf("endpoint %d has the share %v, want %v: %v", i, share, want, short(got[0].Backends))
			}
			if e.Weight > largestExact && slices.Max(shares) < 10*slices.Min(shares) {
				t.Fatalf("endpoint %d has the weight %d", i, e.Weight)
			}
		}
	})
}
