package cli

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/test/expect"
)

func TestFollowEvents(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/events", 200, events())
	for format, want := range map[string]string{
		"table": "2026-11-08T10:13:07Z  backend_drained  web  10.1.0.14  the last connection has gone\n" +
			"2026-11-08T12:12:37Z  drift_repaired  shop/db  192.0.2.11:5432/tcp  scheduler was rr\n",
		"json": `{"id":41,"time":"2026-11-08T10:13:07Z","kind":"backend_drained","service":"web","object":"10.1.0.14","message":"the last connection has gone"}
{"id":42,"time":"2026-11-08T12:12:37Z","kind":"drift_repaired","service":"shop/db","object":"192.0.2.11:5432/tcp","message":"scheduler was rr"}
`,
		"name": "backend_drained\ndrift_repaired\n",
	} {
		r := a.run(t, "events --follow -o "+format)
		expect.Equal(t, r.stdout, want, "%s:\n%s\nwant\n", format, r.stdout)
		if r.code != command.ExitUnreachable || !strings.Contains(r.stderr, "the agent ended the stream") {
			t.Errorf("the agent went away:\n%s", r)
		}
	}
	if r := a.run(t, "events -f --service shop/db -o name"); r.stdout != "drift_repaired\n" {
		t.Errorf("one service only:\n%s", r)
	}
}

// cancelOnWrite cancels a command after its first output.
type cancelOnWrite struct {
	text   bytes.Buffer
	cancel context.CancelFunc
}

func (w *cancelOnWrite) Write(p []byte) (int, error) {
	w.cancel()
	return w.text.Write(p)
}

func TestFollowEndsQuietlyWhenInterrupted(t *testing.T) {
	defer goleak.VerifyNone(t)
	a := &fakeAgent{hold: true, answers: map[string]answer{}}
	a.on("GET /v1/events", 200, events()[:1])
	s := httptest.NewServer(a)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	stdout := &cancelOnWrite{cancel: cancel}
	var stderr bytes.Buffer
	code := Execute(ctx, Options{Environment: command.Environment{Stdout: stdout, Stderr: &stderr, Getenv: os.Getenv}}, []string{"events", "--follow", "-o", "name", "--addr", s.URL})
	if code != command.ExitOK || stdout.text.String() != "backend_drained\n" || stderr.Len() != 0 {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout.text.String(), stderr.String())
	}
}

// No kind of command leaks goroutines.
func TestNoLeaks(t *testing.T) {
	defer goleak.VerifyNone(t)
	a := &fakeAgent{answers: map[string]answer{}}
	a.on("GET /v1/services?limit=1000", 200, v1.ServiceList{Items: []v1.Service{web()}})
	a.on("GET /v1/status", 200, healthyStatus())
	s := httptest.NewServer(a)
	defer s.Close()
	for _, line := range []string{"service list", "status --wait", "__complete service get ", "version", "doctor --config /nonexistent"} {
		run(t, Options{Host: wellHost()}, "--addr "+s.URL+" "+line)
	}
}

// An event of which the agent doesn't list all has the number of them.
func TestEventsAreCounted(t *testing.T) {
	a, first := newAgent(t), now.Add(-3*time.Hour)
	a.on("GET /v1/events", 200, v1.EventList{Items: []v1.Event{
		{ID: 7, Time: now, Kind: "service_down", Service: "web", Message: "web is down", Count: 1204, First: &first},
		{ID: 8, Time: now, Kind: "service_down", Service: "db", Message: "db is down"},
	}})
	if r := a.run(t, "events"); !strings.Contains(r.stdout, "web is down (1 204 times in 3h)\n") || !strings.Contains(r.stdout, "db is down\n") {
		t.Error(r)
	}
}
