package message_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/test/expect"
)

func TestAddCommunity(t *testing.T) {
	for in, want := range map[string]string{
		"65010:100": "[4260495460] []", "no-export": "[4294967041] []", "graceful-shutdown": "[4294901760] []", "blackhole": "[4294902426] []", "0:0": "[0] []",
		"4200065010:1:4294967295": "[] [[4200065010 1 4294967295]]", "1:2:3": "[] [[1 2 3]]", "65010:100 no-export 65010:100 1:2:3 1:2:3": "[4260495460 4294967041] [[1 2 3]]",
		"65536:1": "error", "1:65536": "error", "1": "error", "1:2:3:4": "error", "4294967296:1:1": "error", "": "error", "-1:2": "error", "1:+2:3": "error", "1::3": "error", "No-Export": "error",
	} {
		var a message.PathAttributes
		got := ""
		for _, text := range strings.Split(in, " ") {
			if err := a.AddCommunity(text); err != nil {
				got = "error"
			}
		}
		if got == "" {
			got = fmt.Sprint(a.Communities, a.LargeCommunities)
		}
		expect.Equal(t, got, want, "%q", in)
	}
}

// No text makes a community that is not added, or attributes that another reading finds broken.
func FuzzAddCommunity(f *testing.F) {
	f.Add("65010:100")
	f.Add("4200065010:1:100")
	f.Add("blackhole")
	f.Fuzz(func(t *testing.T, text string) {
		a := message.PathAttributes{ASN: 65010}
		err := a.AddCommunity(text)
		if n := len(a.Communities) + len(a.LargeCommunities); err == nil != (n == 1) {
			t.Errorf("%q: %d communities, %v", text, n, err)
		}
	})
}
