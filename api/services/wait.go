package services

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

const (
	// allocationWait is how long the response to a PUT waits for the VIP.
	allocationWait = 2 * time.Second
)

// WaitRead contains the parameters of a blocking read. Inputs embed it, so it is exported: huma
// ignores unexported fields.
type WaitRead struct {
	Wait     string `query:"wait" doc:"block until a change after revision, at most this long (\"30s\", up to 5m)"`
	Revision uint64 `query:"revision" doc:"the revision that the caller has read"`
}

// until blocks as the caller requested, until newer returns true.
func (w WaitRead) until(h *Handlers, ctx context.Context, newer func() bool) error {
	if w.Wait == "" {
		return nil
	}
	d, err := time.ParseDuration(w.Wait)
	if err != nil || d < 0 || d > request.MaxWait {
		return server.BadRequest("wait must be between 0s and 5m", "use a duration such as wait=30s",
			vip.Problem{Code: vip.CodeInvalid, Field: "query.wait", Message: "must be between 0s and 5m"})
	}
	if d == 0 || newer() {
		return nil
	}
	done, err := h.http.OpenStream(ctx) // it keeps its connection as long as a stream does
	if err != nil {
		return err
	}
	defer done()
	server.Allow(ctx, d+request.AnswerTime)
	h.until(ctx, d, newer)
	return server.NoLongerPermitted(ctx, "")
}

// until waits for done, at most for d or until the request ends, and returns the last result of
// done. It calls done at each change of a service or its status, so done must be cheap.
func (h *Handlers) until(ctx context.Context, d time.Duration, done func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		changed := h.Tables.Revisions.Changed() // before looking
		if done() {
			return true
		}
		select {
		case <-ctx.Done():
			return done()
		case <-changed:
		}
	}
}

// PreferWait is the header that makes a write wait for the dataplane. Inputs embed it, so it is
// exported: huma ignores unexported fields.
type PreferWait struct {
	Prefer string `header:"Prefer" doc:"\"wait=30\": answer when the dataplane has applied the write, or with the error, after at most this many seconds (up to 300)"`
}

// seconds returns how long to wait; 0 means no wait. It ignores unknown parts of a Prefer header,
// as RFC 7240 requires.
func (p PreferWait) seconds() time.Duration {
	for part := range strings.SplitSeq(p.Prefer, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if !strings.EqualFold(name, "wait") {
			continue
		}
		if n, err := strconv.Atoi(strings.Trim(value, `"`)); err == nil && n > 0 {
			return min(time.Duration(n)*time.Second, request.MaxWait)
		}
	}
	return 0
}

// serviceApplied returns a wait of apply for revision rev of a service of the API.
func (h *Handlers) serviceApplied(key vip.ServiceKey, rev uint64) func(context.Context) ([]vip.Problem, error) {
	return func(ctx context.Context) ([]vip.Problem, error) {
		return h.progress.WaitApplied(ctx, key, rest.Type, rev)
	}
}

// orGone returns a wait of apply for a change that also has its full effect when its service is deleted:
// it waits for the change, or for the end of the service. Last is the service's row before the change.
func (h *Handlers) orGone(key vip.ServiceKey, last pipeline.Compiled, wait func(context.Context) ([]vip.Problem, error)) func(context.Context) ([]vip.Problem, error) {
	return func(ctx context.Context) ([]vip.Problem, error) {
		problems, err := wait(ctx)
		if _, gone := errors.AsType[*pipeline.GoneError](err); gone {
			return h.progress.WaitGone(ctx, key, last)
		}
		return problems, err
	}
}

// apply waits, if the caller requested it, until the dataplane has the write and the drains that it
// began would survive the agent. wait reports whether the dataplane has it. An error is a problem
// document that also states that the write itself succeeded. With a *pipeline.GoneError of wait, the
// problem is that of goneMeanwhile.
func (h *Handlers) apply(ctx context.Context, p PreferWait, what string, wait func(context.Context) ([]vip.Problem, error)) (applied string, err error) {
	d := p.seconds()
	if d == 0 {
		return "", nil
	}
	server.Allow(ctx, d+request.AnswerTime)
	waiting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	problems, err := wait(waiting)
	if err == nil {
		err = h.DrainsKept(waiting)
	}
	if refused := server.NoLongerPermitted(ctx, what+" stored; "); refused != nil {
		return "", refused
	}
	gone, deleted := errors.AsType[*pipeline.GoneError](err)
	switch {
	case deleted:
		return "", goneMeanwhile(what, gone.Heir)
	case ctx.Err() != nil:
		return "", server.Refuse(http.StatusGatewayTimeout, v1.CodeApplyTimeout, what+" stored, but not applied before the end of this agent",
			"the next agent on this host goes on; ironvip dataplane show shows the state of the dataplane")
	case err != nil:
		return "", server.Refuse(http.StatusGatewayTimeout, v1.CodeApplyTimeout,
			fmt.Sprintf("%s stored, but not applied within %s", what, d),
			"the agent keeps trying; ironvip dataplane show shows the state of the dataplane")
	case len(problems) > 0 && !slices.ContainsFunc(problems, func(p vip.Problem) bool { return p.Code != v1.CodeDeletedMeanwhile }):
		return "", server.Refuse(http.StatusConflict, v1.CodeDeletedMeanwhile, what+" stored, but another client deleted a part of it", "see errors", problems...)
	case len(problems) > 0:
		return "", server.Refuse(http.StatusBadGateway, v1.CodeApplyFailed, what+" stored, but not fully applied", "see errors; the agent keeps trying", problems...)
	}
	return fmt.Sprintf("wait=%d", int(d/time.Second)), nil
}
