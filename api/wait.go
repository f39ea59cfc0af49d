package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
)

const (
	// maxWait bounds how long a request may wait for something.
	maxWait = 5 * time.Minute
	// allocationWait is how long the answer to a PUT waits for the VIP.
	allocationWait = 2 * time.Second
	// answerTime is what writing an answer may take after a wait.
	answerTime = 30 * time.Second
)

// WaitRead are the parameters of a read that may block. Inputs embed it, so it is exported: huma
// passes over what is not.
type WaitRead struct {
	Wait     string `query:"wait" doc:"block until a change after revision, at most this long (\"30s\", up to 5m)"`
	Revision uint64 `query:"revision" doc:"the revision that the caller has read"`
}

// until blocks as the caller asked, until newer says so.
func (w WaitRead) until(s *Server, ctx context.Context, newer func() bool) error {
	if w.Wait == "" {
		return nil
	}
	d, err := time.ParseDuration(w.Wait)
	if err != nil || d < 0 || d > maxWait {
		return badRequest("wait must be between 0s and 5m", "use a duration such as wait=30s",
			vip.Problem{Code: vip.CodeInvalid, Field: "query.wait", Message: "must be between 0s and 5m"})
	}
	allow(ctx, d+answerTime)
	s.until(ctx, d, newer)
	return nil
}

// until waits until done, for at most d or until the request ends, and returns
// what done says last. It looks again at each change of a table: one look must
// be cheap.
func (s *Server) until(ctx context.Context, d time.Duration, done func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		services, allocations, compiled, frontends, applied, states := s.Services.Changed(), s.Allocations.Changed(),
			s.Compiled.Changed(), s.Frontends.Changed(), s.Applied.Changed(), s.States.Changed() // before looking
		if done() {
			return true
		}
		select {
		case <-ctx.Done():
			return done()
		case <-services:
		case <-allocations:
		case <-compiled:
		case <-frontends:
		case <-applied:
		case <-states:
		}
	}
}

// PreferWait is the header that makes a write wait for the dataplane. Inputs embed it, so it is exported: huma
// passes over what is not.
type PreferWait struct {
	Prefer string `header:"Prefer" doc:"\"wait=30\": answer when the dataplane has applied the write, or with the error, after at most this many seconds (up to 300)"`
}

// seconds returns how long to wait; 0 is not to. What it doesn't understand of
// a Prefer header it ignores, as RFC 7240 has it.
func (p PreferWait) seconds() time.Duration {
	for part := range strings.SplitSeq(p.Prefer, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if !strings.EqualFold(name, "wait") {
			continue
		}
		if n, err := strconv.Atoi(strings.Trim(value, `"`)); err == nil && n > 0 {
			return min(time.Duration(n)*time.Second, maxWait)
		}
	}
	return 0
}

// apply waits, when the caller asked for it, until wait says that the dataplane
// has the write, and the drains that it began would survive the agent. It returns
// what went wrong on the way as a problem document, which also says that the write
// itself is done.
func (s *Server) apply(ctx context.Context, p PreferWait, what string, wait func(context.Context) ([]vip.Problem, error)) (applied string, err error) {
	d := p.seconds()
	if d == 0 {
		return "", nil
	}
	allow(ctx, d+answerTime)
	waiting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	problems, err := wait(waiting)
	if err == nil && s.DrainsKept != nil {
		err = s.DrainsKept(waiting)
	}
	switch {
	case err != nil:
		return "", refuse(http.StatusGatewayTimeout, v1.CodeApplyTimeout,
			fmt.Sprintf("%s stored, but not applied within %s", what, d),
			"the agent keeps trying; GET "+v1.PathDataplane+" shows the state of the dataplane")
	case len(problems) > 0:
		return "", refuse(http.StatusBadGateway, v1.CodeApplyFailed, what+" stored, but not fully applied", "see errors; the agent keeps trying", problems...)
	}
	return fmt.Sprintf("wait=%d", int(d/time.Second)), nil
}
