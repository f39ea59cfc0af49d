package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// grpcMethod is the only method that a probe calls: Check of the standard health service.
const grpcMethod = "/grpc.health.v1.Health/Check"

// maxMessage bounds the answer of a gRPC probe, in bytes. A health answer has 2 to 7.
const maxMessage = 64 << 10

// servingStatus has the names of the answers, by number.
var servingStatus = []string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}

const serving = 1

// grpc calls the standard health service (grpc.health.v1) on a connection of its own. The messages
// are small enough to be written here: a gRPC library would add megabytes to the binary for one call
// without streams, balancing or retries.
func (e *Engine) grpc(ctx context.Context, j *job) (Outcome, string) {
	t, c := j.t.Target, &j.check
	conn, outcome, reason := e.dial(ctx, j, c.TLS, "h2")
	if outcome != OK {
		return outcome, reason
	}
	defer conn.close()
	if secured, is := conn.Conn.(*tls.Conn); is && secured.ConnectionState().NegotiatedProtocol != "h2" {
		return BadAnswer, "the server does not offer HTTP/2, which gRPC needs"
	}
	client, scheme, err := http2Client(ctx, conn.Conn, c.TLS)
	if err != nil {
		return judgeIO("HTTP/2", conn.cause(err), c.Timeout)
	}
	defer client.Close()
	request := (&http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Scheme: scheme, Host: hostOf(t, c), Path: grpcMethod},
		Header: http.Header{
			"Content-Type": {"application/grpc"},
			"Te":           {"trailers"},
			"Grpc-Timeout": {strconv.FormatInt(c.Timeout.Milliseconds(), 10) + "m"},
			"User-Agent":   {"ironvip-health"},
		},
		Body:          io.NopCloser(bytes.NewReader(healthRequest(c.Service))),
		ContentLength: -1,
	}).WithContext(ctx)
	answer, err := client.RoundTrip(request)
	if err != nil {
		if other := otherProtocol(conn.answer()); !c.TLS && other != "" {
			return BadAnswer, other
		}
		return judgeIO("answer", conn.cause(err), c.Timeout)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxMessage+1))
	switch {
	case err != nil:
		return judgeIO("answer", conn.cause(err), c.Timeout)
	case len(body) > maxMessage:
		return BadAnswer, "the answer has more than 64 KiB"
	case answer.StatusCode != http.StatusOK:
		return BadStatus, fmt.Sprintf("HTTP status %d, want 200", answer.StatusCode)
	case !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/grpc"):
		return BadAnswer, fmt.Sprintf("content type %.60q is not gRPC", answer.Header.Get("Content-Type"))
	}
	header := answer.Trailer
	if header.Get("Grpc-Status") == "" {
		header = answer.Header // an error without a message has no trailer
	}
	return judgeHealth(header.Get("Grpc-Status"), header.Get("Grpc-Message"), body)
}

// otherProtocol returns what a server speaks that did not begin its answer as in HTTP/2, or "" if it
// did or sent too little. The first frame of an HTTP/2 server has the type SETTINGS in its fourth byte.
func otherProtocol(answer string) string {
	const settings = 4
	switch {
	case strings.HasPrefix(answer, "HTTP/"):
		return "the server speaks HTTP/1, and gRPC needs HTTP/2"
	case strings.HasPrefix(answer, "\x15\x03"): // an alert
		return "the server speaks TLS: the check needs tls = true"
	case len(answer) < 4 || answer[3] == settings:
		return ""
	}
	return fmt.Sprintf("the server does not speak HTTP/2: its answer begins with %q", answer)
}

// http2Client makes an HTTP/2 client of a connection.
func http2Client(ctx context.Context, conn net.Conn, secure bool) (client *http.ClientConn, scheme string, err error) {
	open := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	transport := &http.Transport{Protocols: new(http.Protocols), MaxResponseHeaderBytes: maxHeader, DisableCompression: true}
	if scheme = "http"; secure {
		scheme = "https"
		transport.DialTLSContext = open
		transport.Protocols.SetHTTP2(true)
	} else {
		transport.DialContext = open
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	client, err = transport.NewClientConn(ctx, scheme, "target:0") // open ignores the address
	return client, scheme, err
}

// judgeHealth returns the outcome of a call's status and message.
func judgeHealth(status, message string, body []byte) (Outcome, string) {
	switch status {
	case "0":
	case "":
		return BadAnswer, "the answer has no grpc-status"
	case "5":
		return NotServing, "grpc-status 5: the server does not know this service"
	case "12":
		return BadStatus, "grpc-status 12: the server has no health service"
	default:
		if text, err := url.PathUnescape(message); err == nil {
			message = text
		}
		return BadStatus, fmt.Sprintf("grpc-status %.10s: %s", status, message)
	}
	n, err := healthAnswer(body)
	switch {
	case err != nil:
		return BadAnswer, err.Error()
	case n == serving:
		return OK, ""
	case n < uint64(len(servingStatus)):
		return NotServing, "status " + servingStatus[n]
	}
	return NotServing, fmt.Sprintf("status %d", n)
}

// healthRequest returns a gRPC frame with a HealthCheckRequest: a byte without compression, the
// length, and the message with the service as field 1.
func healthRequest(service string) []byte {
	var message []byte
	if service != "" {
		message = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), service)
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	return append(frame, message...)
}

var errNotHealthAnswer = errors.New("the answer is not a gRPC health answer")

// healthAnswer reads a gRPC frame with a HealthCheckResponse and returns its field 1, the status.
// A message without the field has status 0. Unknown fields are skipped.
func healthAnswer(frame []byte) (status uint64, err error) {
	if len(frame) < 5 || frame[0] != 0 || uint64(binary.BigEndian.Uint32(frame[1:])) != uint64(len(frame)-5) {
		return 0, errNotHealthAnswer
	}
	for message := frame[5:]; len(message) > 0; {
		number, typ, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return 0, errNotHealthAnswer
		}
		value := 0 // its size
		if number == 1 && typ == protowire.VarintType {
			status, value = protowire.ConsumeVarint(message[tag:])
		} else {
			value = protowire.ConsumeFieldValue(number, typ, message[tag:])
		}
		if value < 0 {
			return 0, errNotHealthAnswer
		}
		message = message[tag+value:]
	}
	return status, nil
}
