package wake

import "testing"

// Signals before a receive are one, and none blocks.
func TestSignal(t *testing.T) {
	s := New()
	for range 2 {
		s.Set()
		s.Set()
		<-s
		select {
		case <-s:
			t.Error("two signals for one receive")
		default:
		}
	}
	Signal(nil).Set()
}
