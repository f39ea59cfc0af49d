package probe

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Limits on an HTTP answer, in bytes. The body beyond the limit is not read.
const (
	maxHeader = 64 << 10
	maxBody   = 64 << 10
)

const defaultStatus = "200-399"

// http sends a request of HTTP/1.1 on a connection of its own and judges the status and the body.
// It follows no redirect: the check's Status decides. It uses no http.Transport, which would need
// two more goroutines for a connection that serves one request.
func (e *Engine) http(ctx context.Context, j *job) (Outcome, string) {
	t, c := j.t.Target, &j.check
	status, err := spec.ParseStatus(cmp.Or(c.Status, defaultStatus))
	if err != nil {
		return Local, "status: " + err.Error()
	}
	path, err := url.ParseRequestURI(cmp.Or(c.Path, "/"))
	if err != nil {
		return Local, "path: " + err.Error()
	}
	conn, outcome, reason := e.dial(ctx, j, c.Type == vip.CheckHTTPS, "http/1.1")
	if outcome != OK {
		return outcome, reason
	}
	defer conn.close()
	request := &http.Request{
		Method: cmp.Or(c.Method, http.MethodGet), URL: path, Host: hostOf(t, c), Close: true,
		Header: http.Header{"User-Agent": {"ironvip-health"}},
	}
	if err := request.Write(conn); err != nil {
		return judgeIO("send", err, c.Timeout)
	}
	limited := &io.LimitedReader{R: conn, N: maxHeader}
	answer, err := readAnswer(bufio.NewReader(limited), request)
	switch {
	case err != nil && limited.N == 0:
		return BadAnswer, "the header has more than 64 KiB"
	case err != nil:
		return judgeIO("answer", err, c.Timeout)
	}
	defer answer.Body.Close()
	if !expected(status, answer.StatusCode) {
		return BadStatus, fmt.Sprintf("status %d, want %s", answer.StatusCode, cmp.Or(c.Status, defaultStatus))
	}
	if c.Body == "" {
		return OK, ""
	}
	limited.N = 2 * maxBody // chunks need more bytes than the body
	return findInBody(answer.Body, c)
}

// errInterim is the error of too many interim responses.
var errInterim = errors.New("more than 5 interim responses (1xx)")

// readAnswer reads the header of the final response. Interim responses before it are ignored.
func readAnswer(r *bufio.Reader, request *http.Request) (*http.Response, error) {
	for range 6 {
		answer, err := http.ReadResponse(r, request)
		if err != nil || answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			return answer, err
		}
	}
	return nil, errInterim
}

// expected reports whether a status code is in the list.
func expected(list []spec.StatusRange, code int) bool {
	for _, r := range list {
		if r.First <= code && code <= r.Last {
			return true
		}
	}
	return false
}

// findInBody searches the first part of the body for the check's text, and ends when it is found.
func findInBody(body io.Reader, c *vip.HealthCheck) (Outcome, string) {
	var buf bytes.Buffer
	text := []byte(c.Body)
	part := make([]byte, 4096)
	for buf.Len() < maxBody {
		n, err := body.Read(part[:min(len(part), maxBody-buf.Len())])
		from := max(0, buf.Len()-len(text)+1)
		buf.Write(part[:n])
		if bytes.Contains(buf.Bytes()[from:], text) {
			return OK, ""
		}
		switch {
		case err == io.EOF:
			return BadAnswer, fmt.Sprintf("the body of %d bytes does not contain %.40q", buf.Len(), c.Body)
		case err != nil:
			return judgeIO("body", err, c.Timeout)
		}
	}
	return BadAnswer, fmt.Sprintf("the first 64 KiB of the body do not contain %.40q", c.Body)
}
