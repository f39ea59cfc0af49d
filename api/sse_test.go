package api

import "testing"

// A stream is of server-sent events if the caller names them and prefers them.
func TestWantsEvents(t *testing.T) {
	for accept, want := range map[string]bool{
		"text/event-stream": true, "TEXT/Event-Stream": true, "application/json, text/event-stream": true, "text/event-stream;q=0.1": true,
		"text/event-stream; charset=utf-8": true, "text/event-stream;q=0.5, application/x-ndjson;q=0.4": true,
		"": false, "*/*": false, "text/*": false, "application/x-ndjson": false,
		"text/event-stream;q=0.4, application/x-ndjson": false, "application/text/event-stream": false,
	} {
		if got := wantsEvents(accept, ndjson); got != want {
			t.Errorf("%q: %v, want %v", accept, got, want)
		}
	}
}
