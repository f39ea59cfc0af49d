package event

import (
	"testing"
	"time"
)

func TestLogKeepsTheNewest(t *testing.T) {
	l := NewLog(3, time.Now)
	_, changed := l.Since(0)
	for range 5 {
		l.Add(Event{Kind: "k"})
	}
	select {
	case <-changed:
	default:
		t.Error("a waiting reader was not woken")
	}
	for since, want := range map[uint64][]uint64{0: {3, 4, 5}, 3: {4, 5}, 5: nil, 99: nil} {
		got, _ := l.Since(since)
		if len(got) != len(want) {
			t.Fatalf("since %d: %v, want IDs %v", since, got, want)
		}
		for i := range got {
			if got[i].ID != want[i] {
				t.Errorf("since %d: %v, want IDs %v", since, got, want)
			}
		}
	}
}

func TestNilLogDrops(t *testing.T) {
	var l *Log
	l.Add(Event{})
}
