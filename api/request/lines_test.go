package request

import (
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// A stream is of lines if the caller names them and prefers them.
func TestWantsLines(t *testing.T) {
	for accept, want := range map[string]bool{
		"application/x-ndjson": true, "Application/X-NDJSON": true, "application/json, application/x-ndjson": true, "application/x-ndjson;q=0.1": true,
		"application/x-ndjson; charset=utf-8": true, "application/x-ndjson;q=0.5, application/json;q=0.4": true,
		"": false, "*/*": false, "application/*": false, "application/json": false,
		"application/x-ndjson;q=0.4, application/json": false, "text/application/x-ndjson": false,
	} {
		expect.Equal(t, WantsLines(accept), want, "%q", accept)
	}
}
