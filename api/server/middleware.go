package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	v1 "github.com/ironvip/ironvip/api/v1"

	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/parallel"
)

// RequestIDHeader has the id of a request, from the caller or from the server.
const RequestIDHeader = "X-Request-Id"

var validID = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

// request is what the context of a request contains.
type request struct {
	id      string
	peer    *peer // nil: the connection is gone, or has none
	http    *http.Request
	conn    *http.ResponseController // of its connection
	problem *v1.ProblemDocument      // that it was answered with; nil: none

	caller    access.Caller // once the route is known
	permitted bool          // the caller has a role, and may use the route
	operation string        // the id of the route; "": there is none
	revision  uint64        // of the write; 0: none
	end       context.CancelCauseFunc
	identify  func() (access.Caller, *Problem) // returns who the caller is now, and why it may not use the route
	lasts     bool                             // the caller is identified again until the end
	done      func()                           // called at the end; nil: nothing is held until then
}

type contextKey struct{}

// requestOf returns the request of a context.
func requestOf(ctx context.Context) *request { return ctx.Value(contextKey{}).(*request) }

// complete returns a copy of a problem's document with what concerns the request, and records it for
// the log. The problem itself may be shared.
func complete(ctx context.Context, p *Problem, path string) v1.ProblemDocument {
	r, doc := requestOf(ctx), p.ProblemDocument
	doc.RequestID, doc.Instance = r.id, path
	r.problem = &doc
	return doc
}

// Allow gives the response to the request d more time. It also removes the read deadline, because
// its expiration would end the request's context. From then on, the context ends as well when the caller is no longer
// permitted.
func Allow(ctx context.Context, d time.Duration) {
	r := requestOf(ctx)
	if !r.lasts && r.identify != nil {
		r.lasts = true
		go func() {
			if err := parallel.Recovered(func() error { r.recheck(ctx); return nil }); err != nil {
				r.end(err)
			}
		}()
	}
	_ = r.conn.SetReadDeadline(time.Time{}) // a writer without deadlines has none to expire
	_ = r.conn.SetWriteDeadline(time.Now().Add(d))
}

// wrap adds to next what every request needs: an id, a log line, a response to a panic, and the
// check of the caller.
func (s *Server) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := r.Header.Get(RequestIDHeader)
		if !validID.MatchString(id) {
			var b [8]byte
			_, _ = rand.Read(b[:]) // never fails
			id = hex.EncodeToString(b[:])
		}
		w.Header().Set(RequestIDHeader, id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		rec := &recorder{ResponseWriter: w}
		conn := http.NewResponseController(rec)
		of := &request{id: id, peer: peerOf(r.Context()), conn: conn}
		ctx, end := context.WithCancelCause(context.WithValue(r.Context(), contextKey{}, of))
		defer end(nil)
		of.end = end
		r = r.WithContext(ctx)
		of.http = r
		defer func() {
			if p := recover(); p != nil {
				s.panicked(rec, r, p)
			}
			if of.done != nil {
				of.done()
			}
			s.record(r, of, rec.status, time.Since(start))
		}()
		if p := s.admit(w, r); p != nil {
			write(rec, r, p)
			_ = conn.SetReadDeadline(time.Now().Add(refusedTimeout)) // http.Server reads the body
			return
		}
		if r.Method == http.MethodHead { // the server omits the body
			r.Method = http.MethodGet
		}
		// A caller that is still sending a refused body would get a broken connection instead of
		// the response. The handler therefore can't close the body; the rest of it is read below.
		body := &wholeBody{Reader: r.Body, brokeOff: func(err error) {
			if rec.status == 0 {
				write(rec, r, BadRequest("incomplete body: "+err.Error(), "send as many bytes as Content-Length states"))
			}
			panic(http.ErrAbortHandler) // answered; the handler can't continue
		}}
		r.Body = io.NopCloser(body)
		next.ServeHTTP(rec, r)
		if body.late { // reading has used all its time; the expired deadline prevents further reads
			_ = conn.SetWriteDeadline(time.Now().Add(readTimeout))
			return
		}
		rest := refusedTimeout
		if of.permitted {
			rest = readTimeout
		}
		_ = conn.SetReadDeadline(time.Now().Add(rest)) // Allow may have removed it
		_, _ = io.CopyN(io.Discard, body.Reader, maxDiscard)
	})
}

// wholeBody is a body that reports when its caller ends it early. Huma would treat that as an error
// of the agent. Huma itself reports a body that is too slow.
type wholeBody struct {
	io.Reader
	brokeOff func(error)
	late     bool // the body was too slow
}

func (b *wholeBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		b.late = true
	case err != nil && err != io.EOF:
		b.brokeOff(err)
	}
	return n, err
}

// panicked responds to a request with a handler that panicked.
func (s *Server) panicked(w *recorder, r *http.Request, p any) {
	if p == http.ErrAbortHandler || r.Context().Err() != nil {
		return // the caller is gone
	}
	s.Log.Error("panic in a request handler", "method", r.Method, "path", r.URL.Path,
		"request_id", requestOf(r.Context()).id, "panic", p, "stack", string(debug.Stack()))
	if w.status == 0 {
		write(w, r, internalError("please report it"))
	}
}

// admit returns why a request is refused before its route is known, or nil.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) *Problem {
	if p := excess(w, r); p != nil {
		return p
	}
	if p := s.slowDown(r); p != nil {
		return p
	}
	if p := s.checkOrigin(r); p != nil {
		return p
	}
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil { // an unparsable part would be ignored
		return BadRequest("invalid query: "+err.Error(), "separate parameters with & and write % as %25")
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return Refuse(http.StatusUnsupportedMediaType, v1.CodeUnsupportedMedia, "unsupported content encoding "+coding, "send the body as it is")
	}
	return nil
}

// checkOrigin checks requests on TCP. It refuses a Host that isn't this agent and an Origin that isn't
// the Host, also with TLS: a browser adds a client certificate to the requests of any page. A web page in a browser on this host must not reach the agent, neither under its own
// name (rebound to 127.0.0.1) nor across origins. Only processes of this host can use the unix
// socket.
func (s *Server) checkOrigin(r *http.Request) *Problem {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && a.Network() == "unix" {
		return nil
	}
	if r.TLS == nil { // with TLS, a page under another name could not have been served: the certificate is not for that name
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if !s.knownHost(strings.Trim(host, "[]")) {
			return Refuse(http.StatusForbidden, v1.CodeForbiddenOrigin, "Host header \""+r.Host+"\" is not a name of this agent",
				"use its address, localhost, or the node's name")
		}
	}
	for _, origin := range r.Header["Origin"] {
		if !isOwnOrigin(r, origin) {
			return Refuse(http.StatusForbidden, v1.CodeForbiddenOrigin, "origin \""+origin+"\" not allowed",
				"call the API from the same origin, or without a browser; a proxy that ends TLS must send X-Forwarded-Proto: https")
		}
	}
	return nil
}

// knownHost reports whether a name in a Host header is this agent. It accepts all addresses,
// because a page under a foreign name can't make a browser send one.
func (s *Server) knownHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || host == strings.ToLower(s.Node) || slices.Contains(s.Hosts, host)
}

// repeatPause is the least time between two log lines of the same failure. Clients repeat a request that the
// agent failed to serve, some of them many times in a second, and must not fill the log.
const repeatPause = time.Minute

// failure is what requests with one log line have in common.
type failure struct {
	status    int
	operation string
}

// record logs a request, and a write also as an audit line. One that the agent failed to serve is logged with the reason, and at most
// once a minute if it is repeated.
func (s *Server) record(r *http.Request, of *request, status int, took time.Duration) {
	attrs := []any{"method", r.Method, "path", r.URL.Path, "status", status,
		"duration", took.Round(time.Microsecond), "request_id", of.id, "remote", r.RemoteAddr, "agent", r.UserAgent(), "caller", of.caller.Name}
	level := levelOf(r, status)
	// A write that the agent failed to store has no audit line: it is repeated until it succeeds.
	switch isChange := isWrite(r, of); {
	case isChange && (level == slog.LevelInfo || of.revision != 0):
		s.Log.Info("audit", append(attrs, "operation", of.operation, "revision", of.revision)...)
		if level == slog.LevelInfo {
			return
		}
	case !isChange && level == slog.LevelInfo:
		level = slog.LevelDebug
	}
	if level >= slog.LevelWarn {
		if of.problem != nil {
			attrs = append(attrs, "code", of.problem.Code, "err", of.problem.Detail)
		}
		if !s.failures.allow(failure{status, of.operation}, rate.Every(repeatPause), 1, time.Now()) {
			level = slog.LevelDebug
		}
	}
	s.Log.Log(r.Context(), level, "request", attrs...)
}

// isWrite reports whether a request may change something. A heartbeat changes nothing but the time
// until its backend is drained.
func isWrite(r *http.Request, of *request) bool {
	return r.Method != http.MethodGet && of.operation != heartbeatRoute
}

// heartbeatRoute is the id of the route of heartbeats.
const heartbeatRoute = "heartbeat"

// levelOf returns the level for logging a request: info for changes, debug for reads,
// warn if the agent could not serve it, and error if it can't store anything because the disk is
// full. The question whether the agent is ready has an answer in any case.
func levelOf(r *http.Request, status int) slog.Level {
	switch {
	case status == http.StatusInsufficientStorage:
		return slog.LevelError
	case status >= 500 && r.URL.Path != v1.PathReadyz:
		return slog.LevelWarn
	case r.Method == http.MethodGet:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// recorder records the status that was written.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap supports http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Flush supports gin, which flushes through an interface.
func (r *recorder) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }
