package draft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Unusable backends are left out and named by their index before the call, the first few of them.
func TestFit(t *testing.T) {
	for _, test := range []struct {
		name     string
		backends string // address, or address=drain
		want     string // the backends, with their reasons
		leftOut  string
		more     int
	}{
		{"none", "", "", "", 0},
		{"all usable", "10.0.0.2 10.0.0.1", "10.0.0.1 10.0.0.2", "", 0},
		{"reasons of those that are left", "x 10.0.0.2=a y 10.0.0.1=b 10.0.0.3", "10.0.0.1(b) 10.0.0.2(a) 10.0.0.3", "0:address 2:address", 0},
		{"a duplicate", "10.0.0.1 10.0.0.2 10.0.0.1", "10.0.0.1 10.0.0.2", "2:", 0},
		{"a duplicate after another problem", "x 10.0.0.1 10.0.0.1", "10.0.0.1", "0:address 2:", 0},
		{"many", "a b c d e f g 10.0.0.1", "10.0.0.1", "0:address 1:address 2:address 3:address 4:address", 2},
	} {
		d := &spec.Service{Name: "web", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}
		for _, word := range strings.Fields(test.backends) {
			address, why, _ := strings.Cut(word, "=")
			d.Backends = append(d.Backends, spec.Backend{Address: address, Reason: vip.ReasonText(why)})
		}
		var leftOut []string
		out, rest, more := Fit(d, func() (vip.Service, []vip.Problem) { return d.Build("test", "test") },
			func(i int, field string, _ vip.Problem) { leftOut = append(leftOut, fmt.Sprintf("%d:%s", i, field)) })
		var got []string
		for _, b := range out.Backends {
			word := b.Address.String()
			if b.Reason != (vip.Reason{}) {
				word += "(" + b.Reason.Text(time.Time{}) + ")"
			}
			got = append(got, word)
		}
		slices.Sort(leftOut)
		if strings.Join(got, " ") != test.want || strings.Join(leftOut, " ") != test.leftOut || more != test.more || len(rest) > 0 {
			t.Errorf("%s: %q, left out %q and %d more, rest %v", test.name, got, leftOut, more, rest)
		}
	}
}

// A problem with the service itself does not leave out backends.
func TestFitOfABadService(t *testing.T) {
	d := &spec.Service{Name: "No Name", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}, Backends: []spec.Backend{{Address: "10.0.0.1"}}}
	_, rest, _ := Fit(d, func() (vip.Service, []vip.Problem) { return d.Build("test", "test") },
		func(i int, field string, _ vip.Problem) { t.Errorf("%d:%s is left out", i, field) })
	if len(rest) != 1 || rest[0].Field != "name" || len(d.Backends) != 1 {
		t.Errorf("%v %v", rest, d.Backends)
	}
}

func TestTexts(t *testing.T) {
	expect.SameList(t, Split(" a, ,b,"), []string{"a", "b"})
	for text, want := range map[string]time.Duration{"90": 90 * time.Second, "5m": 5 * time.Minute} {
		expect.Equal(t, time.Duration(must.Get(Duration(text))(t)), want, "%s", text)
	}
	for _, text := range []string{"", "soon", "-1"} {
		if got, err := Duration(text); err == nil {
			t.Errorf("%q is %v", text, time.Duration(got))
		}
	}
	problems := []vip.Problem{{}, {Hint: "remove it"}}
	KeepsFormer(problems)
	if problems[0].Hint != "the service keeps its former settings until then" || problems[1].Hint != "remove it; the service keeps its former settings until then" {
		t.Errorf("%+v", problems)
	}
	var s spec.Service
	if err := List(func(s *spec.Service) *[]string { return &s.VIPs })(&s, "192.0.2.1, 192.0.2.2"); err != nil || len(s.VIPs) != 2 || !netip.MustParseAddr(s.VIPs[1]).IsValid() {
		t.Errorf("%v %v", s.VIPs, err)
	}
}
