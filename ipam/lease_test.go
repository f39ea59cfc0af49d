package ipam_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// The stored form of leases. A change of it needs a way to read the old form.
func TestLeaseAsJSON(t *testing.T) {
	since := vip.InstantOf(time.Date(2026, 11, 8, 12, 0, 0, 5, time.UTC))
	for _, c := range []struct {
		lease ipam.Lease
		text  string
	}{
		{ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr("2001:db8::1")}, Pool: "p", State: ipam.Held, ShareKey: "k", Since: since, Holders: []ipam.Holder{
			{Service: key("web"), Source: "static", Ports: []vip.PortKey{{Port: 80, Protocol: vip.TCP}}},
			{Service: vip.ServiceKey{Namespace: "prod", Name: "db"}, Source: "rest", Ports: []vip.PortKey{{Port: 53, Protocol: vip.UDP}, {Port: 53, Protocol: vip.TCP}}},
		}}, `{"resource":"2001:db8::1","pool":"p","state":"held","share_key":"k","holders":[{"service":"default/web","source":"static","ports":["80/tcp"]},{"service":"prod/db","source":"rest","ports":["53/udp","53/tcp"]}],"since":"2026-11-08T12:00:00.000000005Z"}`},
		{ipam.Lease{Resource: ipam.Resource{NodePort: 30080, Protocol: vip.SCTP}, State: ipam.Cooling, Since: since, Until: since.Add(time.Minute), Holders: []ipam.Holder{
			{Service: key("web"), Source: "static", Port: vip.PortKey{Port: 80, Protocol: vip.SCTP}},
		}}, `{"resource":"node-port/sctp/30080","state":"cooling","holders":[{"service":"default/web","source":"static","port":"80/sctp"}],"since":"2026-11-08T12:00:00.000000005Z","until":"2026-11-08T12:01:00.000000005Z"}`},
		{ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.1")}, Pool: "p", State: ipam.Held, ShareKey: "k", Since: since, Holders: []ipam.Holder{
			{Service: key("web"), Source: "static", Ports: []vip.PortKey{{Port: 80, Protocol: vip.TCP}, {Port: 10000, LastPort: 10099, Protocol: vip.TCP}}},
		}}, `{"resource":"192.0.2.1","pool":"p","state":"held","share_key":"k","holders":[{"service":"default/web","source":"static","ports":["80/tcp","10000-10099/tcp"]}],"since":"2026-11-08T12:00:00.000000005Z"}`},
		{ipam.Lease{Resource: ipam.Resource{NodePort: 30080, Protocol: vip.TCP}, State: ipam.Held, Since: since, Holders: []ipam.Holder{
			{Service: key("web"), Source: "static", Port: vip.HealthPortKey},
		}}, `{"resource":"node-port/tcp/30080","state":"held","holders":[{"service":"default/web","source":"static","port":"health-check"}],"since":"2026-11-08T12:00:00.000000005Z"}`},
		{ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.1")}, Pool: "p", State: ipam.Held, Since: since, Reservation: &ipam.Reservation{For: key("web"), Since: since},
			Holders: []ipam.Holder{{Service: key("web"), Source: "static"}}},
			`{"resource":"192.0.2.1","pool":"p","state":"held","holders":[{"service":"default/web","source":"static"}],"since":"2026-11-08T12:00:00.000000005Z","reservation":{"for":"default/web","since":"2026-11-08T12:00:00.000000005Z"}}`},
		{ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.1")}, Pool: "p", State: ipam.Reserved, Since: since, Reservation: &ipam.Reservation{For: key("web"), Since: since},
			Holders: []ipam.Holder{{Service: key("web")}}},
			`{"resource":"192.0.2.1","pool":"p","state":"reserved","holders":[{"service":"default/web","source":""}],"since":"2026-11-08T12:00:00.000000005Z","reservation":{"for":"default/web","since":"2026-11-08T12:00:00.000000005Z"}}`},
		{ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.1")}, Pool: "p", State: ipam.Reserved, Since: since, Reservation: &ipam.Reservation{Since: since}},
			`{"resource":"192.0.2.1","pool":"p","state":"reserved","holders":null,"since":"2026-11-08T12:00:00.000000005Z","reservation":{"since":"2026-11-08T12:00:00.000000005Z"}}`},
	} {
		b, err := json.Marshal(c.lease)
		if err != nil || string(b) != c.text {
			t.Errorf("%s, %v\nwant %s", b, err, c.text)
		}
		var back ipam.Lease
		if err := json.Unmarshal([]byte(c.text), &back); err != nil || !back.Equal(c.lease) {
			t.Errorf("%+v, %v", back, err)
		}
	}
}

func TestInvalidLeases(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                                     "nothing is leased",
		`[]`:                                     "lease",
		`{"resource":"192.0.2.1"}`:               `"" is not a state`,
		`{"resource":"192.0.2.1","state":"odd"}`: `"odd" is not a state`,
		`{"resource":"192.0.2.1","state":"held"}`:                                                                              "no holder",
		`{"resource":"192.0.2.1","state":"held","holders":[{"service":"web"}]}`:                                                `"web" is not a service`,
		`{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/b"},{"service":"a/c"}]}`:                              "not shared",
		`{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/b","ports":["80"]}]}`:                                 `"80" is not a port`,
		`{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/b","port":"0/tcp"}]}`:                                 `"0/tcp" is not a port`,
		`{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/b","ports":["health-check"]}]}`:                       `"health-check" is not a port`,
		`{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/b","ports":["99-80/tcp"]}]}`:                          `"99-80/tcp" is not a port`,
		`{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/b","ports":["80-80/tcp"]}]}`:                          `"80-80/tcp" is not a port`,
		`{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/b","ports":["80-65536/tcp"]}]}`:                       `"80-65536/tcp" is not a port`,
		`{"resource":"192.0.2.1","state":"held","holders":[{"service":"a/b","ports":["0-9/tcp"]}]}`:                            `"0-9/tcp" is not a port`,
		`{"resource":"192.0.2.01","state":"held","holders":[{"service":"a/b"}]}`:                                               "not an address",
		`{"resource":"::ffff:192.0.2.1","state":"held","holders":[{"service":"a/b"}]}`:                                         "not an address",
		`{"resource":"2001:DB8::1","state":"held","holders":[{"service":"a/b"}]}`:                                              `is not written as "2001:db8::1"`,
		`{"resource":"fe80::1%eth0","state":"held","holders":[{"service":"a/b"}]}`:                                             "not an address",
		`{"resource":"node-port/tcp/0","state":"held","holders":[{"service":"a/b"}]}`:                                          "not a node port",
		`{"resource":"node-port/tcp/65536","state":"held","holders":[{"service":"a/b"}]}`:                                      "not a node port",
		`{"resource":"node-port/TCP/80","state":"held","holders":[{"service":"a/b"}]}`:                                         "is not written as",
		`{"resource":"192.0.2.1","state":"cooling","share_key":"k","holders":[{"service":"a/b"},{"service":"a/c"}],"since":1}`: "lease",
		`{"resource":"192.0.2.1","state":"reserved"}`:                                                                          "without a reservation",
		`{"resource":"192.0.2.1","state":"reserved","reservation":{"for":"web"}}`:                                              `"web" is not a service`,
		`{"resource":"192.0.2.1","state":"reserved","reservation":{"for":"a/b"}}`:                                              "not the service of its reservation",
		`{"resource":"192.0.2.1","state":"reserved","reservation":{},"holders":[{"service":"a/b"}]}`:                           "not the service of its reservation",
		`{"resource":"192.0.2.1","state":"reserved","reservation":{"for":"a/b"},"holders":[{"service":"a/c"}]}`:                "not the service of its reservation",
		`{"resource":"192.0.2.1","state":"cooling","reservation":{},"holders":[{"service":"a/b"}]}`:                            "only a held or reserved address",
		`{"resource":"node-port/tcp/30080","state":"held","reservation":{},"holders":[{"service":"a/b"}]}`:                     "only a held or reserved address",
	} {
		var l ipam.Lease
		if err := json.Unmarshal([]byte(text), &l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzLeaseJSON(f *testing.F) {
	for _, s := range []string{
		`{"resource":"192.0.2.1","pool":"p","state":"held","holders":[{"service":"default/web","source":"static"}],"since":"2026-11-08T12:00:00Z"}`,
		`{"resource":"node-port/udp/30053","state":"cooling","holders":[{"service":"a/b","source":"","port":"53/udp"}],"since":"2026-11-08T12:00:00Z","until":"2026-11-08T12:00:00+02:00"}`,
		`{"resource":"2001:db8::1","state":"held","share_key":"k","holders":[{"service":"a/b","ports":["80/tcp"]},{"service":"a/c","ports":["1/sctp","2/udp"]}]}`,
		`{"resource":"192.0.2.1","pool":"p","state":"reserved","holders":[{"service":"a/b"}],"reservation":{"for":"a/b","since":"2026-11-08T12:00:00Z"}}`,
	} {
		f.Add([]byte(s))
		f.Add([]byte(strings.NewReplacer("80/tcp", "80-65535/tcp", "53/udp", "health-check").Replace(s)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var l, again ipam.Lease
		if json.Unmarshal(b, &l) != nil {
			return
		}
		text, err := json.Marshal(l)
		must.Succeed(t, err, "%+v was read and can't be written", l)
		if err := json.Unmarshal(text, &again); err != nil || !again.Equal(l) {
			t.Fatalf("%s comes back as %+v, %v", text, again, err)
		}
	})
}

func key(name string) vip.ServiceKey {
	return vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: name}
}
