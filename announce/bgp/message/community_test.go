package message_test

import (
	"testing"

	"github.com/ironvip/ironvip/announce/bgp/message"
)

func TestParseCommunity(t *testing.T) {
	for _, c := range []struct {
		in   string
		want message.Community
		ok   bool
	}{{"65010:100", 65010<<16 | 100, true}, {"no-export", 0xffffff01, true}, {"graceful-shutdown", message.GracefulShutdown, true}, {"0:0", 0, true},
		{"65536:1", 0, false}, {"1:65536", 0, false}, {"1", 0, false}, {"1:2:3", 0, false}, {"", 0, false}, {"-1:2", 0, false}} {
		got, err := message.ParseCommunity(c.in)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v", c.in, got, err)
		}
	}
}
