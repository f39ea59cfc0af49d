package probe

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/vip"
)

// frame returns a gRPC frame with a message.
func frame(message string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// health serves the health service by hand. The name of the service that a request asks for selects
// the answer. The real server is in grpc_system_test.go.
func health(w http.ResponseWriter, r *http.Request) {
	request, _ := io.ReadAll(r.Body)
	service := ""
	if len(request) > 7 {
		service = string(request[7:])
	}
	answer := func(message, status string) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.Write(frame(message))
		w.Header().Set("Grpc-Status", status)
	}
	switch service {
	case "":
		if r.Method != "POST" || r.URL.Path != grpcMethod || r.Header.Get("Te") != "trailers" || r.Header.Get("Grpc-Timeout") == "" ||
			r.Header.Get("Content-Type") != "application/grpc" || string(request) != "\x00\x00\x00\x00\x00" {
			answer("\x08\x02", "0")
			return
		}
		answer("\x08\x01", "0")
	case "host=web.example":
		answer("\x08"+map[bool]string{true: "\x01", false: "\x02"}["host="+r.Host == service], "0")
	case "down":
		answer("\x08\x02", "0")
	case "zero":
		answer("", "0")
	case "nine":
		answer("\x08\x09", "0")
	case "junk":
		answer("\xff\xff", "0")
	case "internal":
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "13")
		w.Header().Set("Grpc-Message", "out of%20order%0A")
	case "unknown":
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "5")
	case "none":
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "12")
	case "html":
		io.WriteString(w, "<html>")
	case "404":
		w.WriteHeader(http.StatusNotFound)
	case "flood":
		w.Header().Set("Content-Type", "application/grpc")
		chunk := make([]byte, 1<<16)
		for n := 0; n < 1<<30; n += len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	case "hang":
		<-r.Context().Done()
	}
}

func TestGRPC(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		t.Parallel()
		ca, other := authority.New(t), authority.New(t)
		roots := x509.NewCertPool()
		roots.AddCert(ca.Cert)
		secure := func(a authority.Authority) netip.AddrPort {
			p := a.Server(t, []netip.Addr{netip.MustParseAddr(f.host)}, "web.example")
			return serve(t, f.host, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{p.Cert.Raw}, PrivateKey: p.Key}}}, health)
		}
		// speaks serves TLS with some protocols, and answers nothing.
		speaks := func(protocols ...string) netip.AddrPort {
			p := ca.Server(t, []netip.Addr{netip.MustParseAddr(f.host)})
			return listen(t, f.host, func(c net.Conn) {
				io.Copy(io.Discard, tls.Server(c, &tls.Config{NextProtos: protocols, Certificates: []tls.Certificate{{Certificate: [][]byte{p.Cert.Raw}, PrivateKey: p.Key}}}))
			})
		}
		// closes answers the first bytes with a text, and ends its side.
		closes := func(text string) netip.AddrPort {
			return listen(t, f.host, func(c net.Conn) {
				c.Read(make([]byte, 1))
				io.WriteString(c, text)
				c.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, c)
			})
		}
		plain, good, bad := serve(t, f.host, nil, health), secure(ca), secure(other)
		check := func(service string) vip.HealthCheck {
			return vip.HealthCheck{Type: vip.CheckGRPC, Service: service}
		}
		with := func(c vip.HealthCheck, host string, skip bool) vip.HealthCheck {
			c.TLS, c.Host, c.SkipVerify = true, host, skip
			return c
		}
		run(t, Options{RootCAs: roots}, []expectation{
			{"serving", plain, check(""), OK, ""},
			{"not serving", plain, check("down"), NotServing, "status NOT_SERVING"},
			{"unknown status", plain, check("zero"), NotServing, "status UNKNOWN"},
			{"status of the future", plain, check("nine"), NotServing, "status 9"},
			{"unknown service", plain, check("unknown"), NotServing, "does not know this service"},
			{"no health service", plain, check("none"), BadStatus, "no health service"},
			{"error", plain, check("internal"), BadStatus, "grpc-status 13: out of order"},
			{"not protobuf", plain, check("junk"), BadAnswer, "not a gRPC health answer"},
			{"not gRPC", plain, check("html"), BadAnswer, "is not gRPC"},
			{"not found", plain, check("404"), BadStatus, "HTTP status 404"},
			{"flood", plain, check("flood"), BadAnswer, "more than 64 KiB"},
			{"hangs", plain, check("hang"), TimedOut, "not complete within 500ms"},
			{"TLS", good, with(check(""), "", false), OK, ""},
			{"TLS with a name", good, with(check("host=web.example"), "web.example", false), OK, ""},
			{"other name", good, with(check(""), "db.example", false), BadTLS, "db.example"},
			{"other authority", bad, with(check(""), "", false), BadTLS, "unknown authority"},
			{"other authority, not verified", bad, with(check(""), "", true), OK, ""},
			{"plain to TLS", good, check(""), Reset, ""},
			{"TLS to plain", plain, with(check(""), "", false), BadTLS, "TLS handshake: the server does not speak TLS"},
			{"refused", closedPort(t, f.host), check(""), Refused, "connection refused"},
			{"silent", listen(t, f.host, func(c net.Conn) { io.Copy(io.Discard, c) }), check(""), TimedOut, "not complete within"},
			{"HTTP/1 only", raw(t, f.host, "HTTP/1.1 400 Bad Request\r\n\r\n", "%hang"), check(""), BadAnswer, "the server speaks HTTP/1, and gRPC needs HTTP/2"},
			{"HTTP/1 that closes", closes("HTTP/1.1 400 Bad Request\r\n\r\n"), check(""), BadAnswer, "the server speaks HTTP/1, and gRPC needs HTTP/2"},
			{"HTTP/1 in parts", raw(t, f.host, "HT", "TP/1.1 400 Bad Request\r\n\r\n", "%hang"), check(""), BadAnswer, "the server speaks HTTP/1, and gRPC needs HTTP/2"},
			{"another protocol", raw(t, f.host, "220 mail ready\r\n", "%hang"), check(""), BadAnswer, `the server does not speak HTTP/2: its answer begins with "220 mail ready\r\n"`},
			{"a TLS alert", closes("\x15\x03\x01\x00\x02\x02\x46"), check(""), BadAnswer, "the server speaks TLS: the check needs tls = true"},
			{"TLS with HTTP/1 only", speaks("http/1.1"), with(check(""), "", false), BadTLS, "TLS handshake: the server does not speak HTTP/2"},
			{"TLS without ALPN", speaks(), with(check(""), "", false), BadAnswer, "the server does not offer HTTP/2, which gRPC needs"},
			{"closes", listen(t, f.host, func(net.Conn) {}), check(""), Reset, ""},
		})
	})
}

func FuzzHealthAnswer(f *testing.F) {
	for _, message := range []string{"", "\x08\x01", "\x08\x02", "\x10\x05\x08\x01", "\x1a\x03abc\x08\x01", "\x09........\x15....\x08\x01", "\x08", "\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		f.Add(frame(message))
	}
	f.Add([]byte("\x01\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		status, err := healthAnswer(data)
		if err != nil && status != 0 {
			t.Errorf("status %d with %v", status, err)
		}
		if err == nil { // an unknown field at the end changes nothing
			again, err := healthAnswer(frame(string(data[5:]) + "\x7a\x02zz"))
			if err != nil || again != status {
				t.Errorf("with another field: %d, %v; want %d", again, err, status)
			}
		}
		judgeHealth("0", "", data)
	})
}

func TestHealthAnswer(t *testing.T) {
	for message, want := range map[string]uint64{"": 0, "\x08\x01": 1, "\x10\x05\x08\x01": 1, "\x1a\x03abc\x08\x01": 1, "\x09........\x15....\x08\x01": 1, "\x08\xac\x02": 300} {
		if got, err := healthAnswer(frame(message)); got != want || err != nil {
			t.Errorf("%q: %d, %v; want %d", message, got, err, want)
		}
	}
	for _, bad := range []string{"", "\x00\x00\x00\x00", "\x01\x00\x00\x00\x00", "\x00\x00\x00\x00\x01", string(frame("\x08")), string(frame("\x08\x80")), string(frame("\x0b")),
		string(frame("\x00\x01")), string(frame("\x1a\x05abc")), string(frame("\x09abc")), string(frame("\x15abc"))} {
		if got, err := healthAnswer([]byte(bad)); err == nil {
			t.Errorf("%q: %d", bad, got)
		}
	}
}
