package proxyproto

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// pair returns two ends of a TCP connection.
func pair(t *testing.T) (sender, receiver *net.TCPConn) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	c := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	t.Cleanup(func() { c.Close() })
	s := must.Get(l.Accept())(t)
	t.Cleanup(func() { s.Close() })
	_ = s.SetReadDeadline(time.Now().Add(time.Minute))
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

type result struct {
	h   Header
	err error
}

func start(c *net.TCPConn) chan result {
	done := make(chan result, 1)
	go func() {
		h, err := Read(c)
		done <- result{h, err}
	}()
	return done
}

// Read leaves everything after the header to the next reader, wherever the stream is divided.
func TestReadTakesTheHeaderOnly(t *testing.T) {
	const rest = "PROXY TCP4 is what the client says\r\n"
	for _, text := range []string{
		"PROXY UNKNOWN\r\n",
		"PROXY TCP4 192.0.2.1 198.51.100.2 12345 80\r\n",
		v2(0x21, 0x11, ends4+someTLV),
		v2(0x20, 0, ""),
		v2(0x21, 0x11, ends4+tlv(4, strings.Repeat("x", MaxSize-fixed-12-3))),
	} {
		want, _, err := Parse([]byte(text))
		must.Succeed(t, err)
		for _, at := range []int{0, 1, 5, 6, 12, 15, 16, len(text) - 1, len(text), len(text) + 1, len(text) + len(rest)} {
			sender, receiver := pair(t)
			all := text + rest
			at = min(at, len(all))
			send(t, sender, all[:at])
			done := start(receiver)
			if at < len(text) {
				wait.Until(t, "the first part is taken", func() bool { return unread(t, receiver) == 0 })
			}
			send(t, sender, all[at:])
			if got := <-done; got.err != nil || got.h != want {
				t.Fatalf("%q divided at %d: %v", text, at, got)
			}
			sender.CloseWrite()
			must.Equal(t, string(must.Get(io.ReadAll(receiver))(t)), rest, "%q divided at %d: the rest", text, at)
			sender.Close()
			receiver.Close()
		}
	}
}

func TestReadErrors(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want error
	}{
		"nothing":      {"", io.EOF},
		"truncated":    {"PROXY TCP4 192.0.2.1", ErrTruncated},
		"truncated v2": {v2(0x21, 0x11, ends4)[:20], ErrTruncated},
		"malformed":    {"GET / HTTP/1.1\r\n", ErrMalformed},
		"too long":     {"PROXY UNKNOWN " + strings.Repeat("x", 200), ErrTooLong},
	} {
		// The end of the stream arrives together with the data, or later.
		for _, together := range []bool{true, false} {
			sender, receiver := pair(t)
			send(t, sender, test.text)
			if together {
				sender.CloseWrite()
				wait.Until(t, "the end has arrived", func() bool { return ended(t, receiver) })
			}
			done := start(receiver)
			if !together {
				if test.want == ErrTruncated {
					wait.Until(t, "the data is taken", func() bool { return unread(t, receiver) == 0 })
				}
				sender.CloseWrite()
			}
			if got := <-done; !errors.Is(got.err, test.want) || got.h != (Header{}) {
				t.Errorf("%s: %v, want %v", name, got, test.want)
			}
		}
	}
}

// A reset is an end: port checks often end with one.
func TestReadOfAReset(t *testing.T) {
	for text, want := range map[string]error{"": io.EOF, "PROXY ": ErrTruncated} {
		sender, receiver := pair(t)
		send(t, sender, text)
		done := start(receiver)
		wait.Until(t, "the data is taken", func() bool { return unread(t, receiver) == 0 })
		_ = sender.SetLinger(0)
		sender.Close()
		got := <-done
		expect.Is(t, got.err, want, "%q and a reset: %v", text, got)
	}
}

func TestReadDeadline(t *testing.T) {
	for _, text := range []string{"", "PROXY ", signature} {
		sender, receiver := pair(t)
		send(t, sender, text)
		done := start(receiver)
		wait.Until(t, "the data is taken", func() bool { return unread(t, receiver) == 0 })
		_ = receiver.SetReadDeadline(time.Now())
		got := <-done
		expect.Is(t, got.err, os.ErrDeadlineExceeded, "%q and silence: %v", text, got)
	}
}

func TestReadOfAClosedConnection(t *testing.T) {
	_, receiver := pair(t)
	receiver.Close()
	_, err := Read(receiver)
	expect.Is(t, err, net.ErrClosed)
}

func send(t *testing.T, c *net.TCPConn, text string) {
	t.Helper()
	must.Get(c.Write([]byte(text)))(t)
}
