//go:build system

package program

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// Acknowledged services, their VIPs and their traffic survive kill -9.
func TestRegistrationsSurviveKill(t *testing.T) {
	h := newHost(t)
	a := newBackend(t, "a")
	h.start()
	vips := map[string]string{}
	for i := range 20 {
		name := fmt.Sprintf("s%d", i)
		vips[name] = h.put(name, a)
	}
	if code, _ := h.rest("DELETE", "/v1/services/default/s7", "", "Prefer", "wait=300"); code/100 != 2 {
		t.Fatalf("DELETE: %d", code)
	}
	delete(vips, "s7")
	for range 3 {
		h.kill()
		h.start()
		for name, vip := range vips {
			expect.Equal(t, h.vip(name), vip, "%s moved from %s to", name, vip)
			h.serves(vip+":8080", "a")
		}
		if code, _ := h.rest("GET", "/v1/services/default/s7", ""); code != 404 {
			t.Errorf("the deleted service is back: %d", code)
		}
	}
}
