package address

import (
	"net/netip"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
)

func TestTextOfRoutes(t *testing.T) {
	own, aggregate := netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.0/24")
	plain := []v1.AnnouncementRoute{{Prefix: own}}
	much := []v1.AnnouncementRoute{{Prefix: own, Communities: []string{"1:1", "no-export"}, MED: 5, LocalPref: 100, Prepend: 2, LinkBandwidth: 375000}, {Prefix: aggregate}}
	for want, places := range map[string][]v1.AnnouncementPlace{
		"":                    {{At: "eth0"}, {At: "r1"}},
		"r1, r2: 10.0.0.1/32": {{At: "r1", Routes: plain}, {At: "r2", Routes: plain}, {At: "r3"}},
		"r2: 10.0.0.1/32 with communities 1:1 no-export, med 5, local_pref 100, prepend 2, link bandwidth 3 Mbit/s and 10.0.0.0/24; r1: 10.0.0.1/32": {{At: "r2", Routes: much}, {At: "r1", Routes: plain}},
	} {
		expect.Equal(t, routesText(places), want)
	}
}
