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

// A change wakes all that have asked for it, and none that asks afterwards.
func TestBroadcast(t *testing.T) {
	var b Broadcast
	b.Send()
	first, second := b.Next(), b.Next()
	select {
	case <-first:
		t.Error("a change before the first reader wakes it")
	default:
	}
	b.Send()
	<-first
	<-second
	select {
	case <-b.Next():
		t.Error("a change wakes a later reader")
	default:
	}
}
