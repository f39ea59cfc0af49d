package steer

import (
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestDestination(t *testing.T) {
	if _, ok := destination([]byte{1, 2, 3}); ok {
		t.Error("a broken message has a destination")
	}
	if _, ok := destination(nil); ok {
		t.Error("no message has a destination")
	}
	expect.SameList(t, slotNames[:], []string{"tcp4", "tcp6", "udp4", "udp6"}, slotNames)
}
