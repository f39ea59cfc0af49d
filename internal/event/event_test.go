package event

import (
	"fmt"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func TestLogKeepsTheNewest(t *testing.T) {
	l := NewLog(3, func() time.Time { return time.UnixMicro(1) })
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
		must.Len(t, got, len(want), "since %d: %v, want IDs %v", since, got, want)
		for i := range got {
			expect.Equal(t, got[i].ID, want[i], "since %d: %v, want IDs %v", since, got, want)
		}
	}
	for id, want := range map[uint64]bool{0: false, 1: true, 2: true, 5: true, 6: false} {
		if l.Issued(id) != want {
			t.Errorf("ID %d is issued: %t", id, !want)
		}
	}
}

// IDs of the next run of an agent are above those of this one.
func TestIDsGrowAcrossRuns(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	run := func() uint64 {
		l := NewLog(2, func() time.Time { return now })
		for range 1000 {
			l.Add(Event{Kind: "k"})
		}
		events := l.all()
		return events[len(events)-1].ID
	}
	first := run()
	now = now.Add(time.Second)
	if second := run(); second <= first+1000 {
		t.Errorf("the runs end with the IDs %d and %d", first, second)
	}
}

// A service that changes its state all the time leaves the events of others in the log. Its latest
// events are listed, and the last has the number of all and the time of the first.
func TestLogBoundsRepeatedEvents(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := begin
	l := NewLog(20, func() time.Time { return now })
	l.Add(Event{Kind: "lease_given", Service: "db"})
	const times = 1000
	for range times {
		for _, kind := range []string{"service_down", "service_healthy"} {
			now = now.Add(time.Second)
			l.Add(Event{Kind: kind, Service: "web"})
		}
	}
	l.Add(Event{Kind: "service_down", Service: "db"})
	got, _ := l.Since(0)
	if len(got) != 2+2*MaxAlike || got[0].Kind != "lease_given" {
		t.Fatalf("%d events, want %d of the service that flaps and those of another: %+v", len(got), 2*MaxAlike, got)
	}
	for i, e := range got[1 : len(got)-1] {
		kind, first := "service_down", begin.Add(time.Second)
		if i%2 == 1 {
			kind, first = "service_healthy", first.Add(time.Second)
		}
		count := uint64(times - MaxAlike + 1 + i/2)
		if e.Kind != kind || e.Count != count || e.First == nil || !e.First.Equal(first) || e.ID != uint64(begin.UnixMicro())+uint64(2*times+1-2*MaxAlike+i) {
			t.Errorf("event %d: %+v, want the %dth %s since %s", i, e, count, kind, first)
		}
	}
	if last := got[len(got)-1]; last.Count != 0 || last.First != nil {
		t.Errorf("a first event is counted: %+v", last)
	}
}

// A namespace with many services and backends leaves the events of others in the log, whatever it does. Events of
// this host, without a service, are apart from those of the default namespace.
func TestLogIsSharedByNamespaces(t *testing.T) {
	const size = 20
	l := NewLog(size, time.Now)
	others := []Event{{Kind: "config_reloaded"}, {Kind: "lease_given", Service: "web"}, {Kind: "lease_given", Service: "prod/web"}, {Kind: "lease_given", Service: "test/web"}}
	for _, e := range others {
		l.Add(e)
	}
	for i := range 1200 {
		l.Add(Event{Kind: "backend_expired", Service: fmt.Sprintf("noisy/web-%d", i%7), Object: fmt.Sprint(i)})
	}
	got := l.all()
	must.Equal(t, len(got), size, "events")
	for i, e := range others {
		if got[i].Kind != e.Kind || got[i].Service != e.Service {
			t.Errorf("event %d: %+v, want %+v", i, got[i], e)
		}
	}
	for i, e := range got[len(others):] {
		expect.Equal(t, e.Object, fmt.Sprint(1200-size+len(others)+i), "event %d of the noisy namespace is of", i)
	}

	// Two noisy ones have as much as each other.
	for i := range 100 {
		l.Add(Event{Kind: "backend_expired", Service: "loud/web", Object: fmt.Sprint(i)})
	}
	count := map[string]int{}
	for _, e := range l.all() {
		count[namespaceOf(e.Service)]++
	}
	if count["noisy//"] != 8 || count["loud//"] != 8 {
		t.Errorf("events by namespace: %v", count)
	}
}

// An object that no longer has an event is forgotten: the memory of a log is bounded by its size.
func TestLogForgetsSubjects(t *testing.T) {
	l := NewLog(5, time.Now)
	for i := range 100 {
		l.Add(Event{Kind: "k", Object: fmt.Sprint(i % 10)})
	}
	if len(l.alike) != 5 || l.events.Len() != 5 {
		t.Errorf("%d subjects of %d events, want 5", len(l.alike), l.events.Len())
	}
	for i := range 100 {
		l.Add(Event{Kind: "k", Service: fmt.Sprintf("ns-%d/web", i)})
	}
	expect.Equal(t, len(l.namespaces), 5, "namespaces")
	l = NewLog(5, time.Now)
	for i := range 5 {
		l.Add(Event{Kind: "k", Object: fmt.Sprint(i)})
	}
	for _, e := range l.all() {
		expect.Equal(t, e.Count, 0, "counted with forgotten ones: %+v", e)
	}
}

func (l *Log) all() []Event {
	events, _ := l.Since(0)
	return events
}

func TestNilLogDrops(t *testing.T) {
	var l *Log
	l.Add(Event{})
}

// Followers get every event of many, and the log the first ones and one that counts the others.
func TestManyEventsOfOneCause(t *testing.T) {
	l := NewLog(100, time.Now)
	var told []string
	var last uint64
	l.Follow(func(e Event) {
		told = append(told, e.Object)
		expect.True(t, e.ID > last, "ID %d after %d", e.ID, last)
		last = e.ID
	})
	var events []Event
	var want []string
	for i := range MaxMany + 7 {
		events = append(events, Event{Kind: "vip_announced", Object: fmt.Sprint(i)})
		want = append(want, fmt.Sprint(i))
	}
	others := func(n int) string { return fmt.Sprintf("%d more", n) }
	l.AddMany(events, others)
	expect.SameList(t, told, want)
	kept, _ := l.Since(0)
	must.Len(t, kept, MaxMany+1)
	expect.Equal(t, kept[MaxMany].Kind+kept[MaxMany].Object+" "+kept[MaxMany].Message, "vip_announced 7 more")
	l.AddMany(events[:MaxMany], others)
	kept, changed := l.Since(kept[MaxMany].ID)
	expect.Len(t, kept, MaxMany)
	l.AddMany(events[:1], others)
	select {
	case <-changed:
	default:
		t.Error("a waiting reader was not woken")
	}
}
