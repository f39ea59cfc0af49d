package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// connection is the connection of a probe that runs in a goroutine.
type connection struct {
	net.Conn                       // with TLS if the probe uses it
	lost     atomic.Pointer[error] // the first error below TLS
	// received is the beginning of what the target sent below TLS, up to maxReceived bytes.
	received atomic.Pointer[string]
	close    func()
}

// maxReceived is enough to recognize a protocol, in bytes.
const maxReceived = 24

// socketOf is a connection's socket. It keeps the first error, which net/http replaces by one that
// does not name the cause, and the beginning of the answer. It has one reader at a time.
type socketOf struct {
	net.Conn
	c *connection
}

func (s socketOf) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if got := s.c.answer(); n > 0 && len(got) < maxReceived {
		got += string(b[:min(n, maxReceived-len(got))])
		s.c.received.Store(&got)
	}
	s.keep(err)
	return n, err
}

func (s socketOf) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.keep(err)
	return n, err
}

func (s socketOf) keep(err error) {
	if err != nil && !errors.Is(err, net.ErrClosed) { // net/http closed it after an error
		s.c.lost.CompareAndSwap(nil, &err)
	}
}

// answer returns the beginning of what the target sent below TLS.
func (c *connection) answer() string {
	if got := c.received.Load(); got != nil {
		return *got
	}
	return ""
}

// cause returns the error of the connection that led to err, or err.
func (c *connection) cause(err error) error {
	if lost := c.lost.Load(); lost != nil {
		return *lost
	}
	return err
}

// dial opens a connection, with TLS and its protocol if secure. Everything on it ends with ctx. The
// caller calls close. For an outcome other than OK there is no connection.
func (e *Engine) dial(ctx context.Context, j *job, secure bool, protocol string) (conn *connection, outcome Outcome, reason string) {
	t, c := j.t.Target, &j.check
	dialer := net.Dialer{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if failed := raw.Control(func(fd uintptr) { err = prepare(int(fd), j) }); failed != nil {
			return failed
		}
		return err
	}}
	raw, err := dialer.DialContext(ctx, "tcp", j.address().String())
	if err != nil {
		outcome, reason = judgeIO("connect", err, c.Timeout)
		var failed pathError
		if errors.As(err, &failed) {
			outcome, reason = failed.judge()
		}
		return nil, outcome, reason
	}
	// As for TCP probes, a reset leaves no TIME_WAIT. It comes after the answer that the probe needs.
	raw.(*net.TCPConn).SetLinger(0)
	if deadline, ok := ctx.Deadline(); ok {
		raw.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) }) // ctx can end before its deadline
	conn = &connection{close: func() {
		stop()
		raw.Close()
	}}
	conn.Conn = socketOf{raw, conn}
	if !secure {
		return conn, OK, ""
	}
	client := tls.Client(conn.Conn, &tls.Config{
		RootCAs:            e.o.RootCAs,
		ServerName:         serverName(t, c),
		InsecureSkipVerify: c.SkipVerify,
		NextProtos:         []string{protocol},
	})
	conn.Conn = client
	if err := client.HandshakeContext(ctx); err != nil {
		conn.close()
		outcome, reason = judgeIO("TLS handshake", err, c.Timeout)
		if strings.HasSuffix(err.Error(), noProtocol.Error()) {
			reason = "TLS handshake: the server does not speak " + protocolNames[protocol]
		}
		return nil, outcome, reason
	}
	return conn, OK, ""
}

// noProtocol is the alert no_application_protocol (RFC 7301). The type of the alerts of a server is
// not exported.
const noProtocol = tls.AlertError(120)

// protocolNames are the protocols that probes ask for by ALPN.
var protocolNames = map[string]string{"h2": "HTTP/2", "http/1.1": "HTTP/1"}

// hostOf returns the name of the target in requests.
func hostOf(t Target, c *vip.HealthCheck) string {
	if c.Host != "" {
		return c.Host
	}
	return t.Addr.String()
}

// serverName returns the name in the certificate: the host without the port, or the address.
func serverName(t Target, c *vip.HealthCheck) string {
	if c.Host == "" {
		return t.Addr.Addr().WithZone("").String()
	}
	if host, _, err := net.SplitHostPort(c.Host); err == nil {
		return host
	}
	return strings.Trim(c.Host, "[]")
}

// judgeIO returns the outcome of an error on a connection with a deadline, and the reason.
func judgeIO(operation string, err error, timeout time.Duration) (Outcome, string) {
	var timedOut net.Error
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var certificate *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timedOut) && timedOut.Timeout():
		return TimedOut, operation + ": not complete within " + timeout.String()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Reset, operation + ": connection closed before the end of the answer"
	case errors.As(err, &record):
		return BadTLS, operation + ": the server does not speak TLS"
	case errors.As(err, &certificate), errors.As(err, &unknown), errors.As(err, &alert):
		return BadTLS, operation + ": " + strings.TrimPrefix(err.Error(), "tls: ")
	case outcomeOf(err) == BadAnswer && operation == "TLS handshake":
		return BadTLS, operation + ": " + strings.TrimPrefix(err.Error(), "tls: ")
	}
	return judge(operation, err)
}
