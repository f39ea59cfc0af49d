package draft

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
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

// Each field can be set by a text. Consul's keys and Kubernetes' annotations have these forms.
func TestSet(t *testing.T) {
	untested := maps.Clone(Fields)
	for _, test := range []struct{ name, text, want string }{
		{"name", " shop ", `"shop"`}, {"namespace", "team", `"team"`}, {"pool", "lan", `"lan"`}, {"share-key", "front", `"front"`},
		{"labels", "a=b, c=d=e", `{"a":"b","c":"d=e"}`}, {"labels", "a", `"a" is no list of labels`}, {"labels", "a=b,a=c", `"a=b,a=c" is no list of labels`},
		{"families", "ipv4", `["ipv4"]`}, {"vips", "192.0.2.1, ,2001:db8::1,", `["192.0.2.1","2001:db8::1"]`}, {"hostnames", "b.example,a.example", `["b.example","a.example"]`},
		{"scheduler", "mh", `"mh"`}, {"scheduler-flags", "fallback,port", `["fallback","port"]`}, {"forward", "nat", `"nat"`},
		{"affinity", "90", `{"timeout":"1m30s"}`}, {"affinity", "none", `null`}, {"affinity", "long", `"long" is not a time span`},
		{"internal-traffic", "local", `"local"`}, {"external-traffic", "local", `"local"`}, {"traffic-distribution", "same-zone", `"same-zone"`},
		{"health-check-node-port", "30081", `30081`}, {"health-check-node-port", "auto", `"auto"`}, {"health-check-node-port", "yes", `invalid node port: the string "yes"`},
		{"masquerade", "never", `"never"`}, {"source-ranges", "198.51.100.0/24,203.0.113.7", `["198.51.100.0/24","203.0.113.7"]`},
		{"proxy-protocol", "v2", `"v2"`}, {"accept-proxy-from", "192.0.2.0/24", `["192.0.2.0/24"]`},
		{"drain-timeout", "5m", `"5m"`}, {"drain-timeout", "90", `"1m30s"`}, {"drain-timeout", "soon", `"soon" is not a time span`}, {"drain-timeout", "-1", `"-1" is not a time span`},
		{"connect-timeout", "2", `"2s"`}, {"idle-timeout", "10m", `"10m"`}, {"half-close-timeout", "20s", `"20s"`}, {"queue-timeout", "500ms", `"500ms"`}, {"slow-start", "30", `"30s"`},
		{"max-connections", "100", `100`}, {"max-queue", "50", `50`}, {"max-connections-per-source", "9", `9`}, {"max-rate-per-source", "5", `5`}, {"syn-proxy", "true", `true`}, {"syn-proxy", "yes", `"yes" is neither true nor false`}, {"panic-threshold", "50", `50`}, {"panic-threshold", "50%", `"50%" is not a number`}, {"max-queue", "-1", `"-1" is not a number`},
		{"health", "none", `{"type":"none"}`}, {"health", `{"type": "http", "path": "/x"}`, `{"type":"http","path":"/x"}`},
		{"health", `{"type": "http"`, "not valid JSON near line 1, column 16: ends too early"}, {"health", `{"type": "http", "pth": "/"}`, "pth: unknown key"},
		{"on-unhealthy", "reset", `"reset"`},
	} {
		delete(untested, test.name)
		var d spec.Service
		got := ""
		if err := Set(&d, Fields[test.name], test.text); err != nil {
			got = err.Error()
			expect.True(t, reflect.ValueOf(d).IsZero(), "%s = %s is an error, and sets %+v", test.name, test.text, d)
		} else {
			got = string(must.Get(json.Marshal(Fields[test.name].Of(&d)))(t))
		}
		expect.Equal(t, got, test.want, "%s = %s", test.name, test.text)
	}
	for name := range untested {
		t.Errorf("no row sets %s", name)
	}
}

func TestKeepsFormer(t *testing.T) {
	problems := []vip.Problem{{}, {Hint: "remove it"}}
	KeepsFormer(problems)
	if problems[0].Hint != "the service keeps its former settings until then" || problems[1].Hint != "remove it; the service keeps its former settings until then" {
		t.Errorf("%+v", problems)
	}
}
