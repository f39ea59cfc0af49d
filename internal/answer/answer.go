// Package answer bounds the answers of servers, and what they take in memory when they are decoded: an empty object of
// three bytes can become a structure of a kilobyte.
//
// Its input is a body, or a message in JSON or protobuf. Its output is an error once there is too much. It estimates
// without a schema, by the number of objects and elements, and decodes nothing.
package answer

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
)

// MaxDecoded bounds the estimate for a decoded answer, in bytes. 70,000 instances of one service in Consul take as
// much, and so do 640,000 endpoints of Kubernetes.
const MaxDecoded = 1 << 30

// ErrTooLarge is the error of an answer that would take too much memory.
var ErrTooLarge = errors.New("the answer would take more than a gigabyte when it is decoded: it has too many objects")

// Estimates for what is decoded, in bytes, besides the texts.
const (
	ofObject  = 512  // in JSON, also null
	ofElement = 64   // in JSON, also a field
	ofItem    = 1024 // in protobuf: an object of a list
	ofField   = 128  // in protobuf: a text, or a message in an object
)

// maxRefusal is how much of an answer with an error is read, in bytes. Clients keep it as a text.
const maxRefusal = 4 << 10

// Bound makes the body of a response fail after limit bytes. If it is JSON, it also fails at MaxDecoded. The body of an
// error is cut off.
func Bound(r *http.Response, limit int64, json bool) {
	b := &body{Reader: r.Body, Closer: r.Body, limit: limit, left: limit, json: json}
	if r.StatusCode < 200 || r.StatusCode > 299 {
		b.Reader = io.LimitReader(r.Body, maxRefusal)
	}
	r.Body = b
}

type body struct {
	io.Reader
	io.Closer
	limit, left int64
	json        bool
	decoded     text
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is longer than %d MiB", b.limit>>20)
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if b.json && b.decoded.add(p[:n]) > MaxDecoded {
		return 0, ErrTooLarge
	}
	return n, err
}

// text estimates what JSON is decoded to, from one part after the other.
type text struct {
	size int64
	last byte
}

// add returns the estimate with one more part. Signs in strings count, too.
func (t *text) add(part []byte) int64 {
	for _, c := range part {
		switch {
		case c == '{', c == 'u' && t.last == 'n': // null
			t.size += ofObject
		case c == ',':
			t.size += ofElement
		}
		t.last = c
	}
	t.size += int64(len(part))
	return t.size
}

// CheckJSON returns ErrTooLarge if a message is estimated to take more than most bytes.
func CheckJSON(message []byte, most int64) error {
	if (&text{}).add(message) > most {
		return ErrTooLarge
	}
	return nil
}

// CheckProtobuf is CheckJSON for protobuf. The items of a list are the messages at the given depth: 0 for the message's
// own fields.
func CheckProtobuf(message []byte, items int, most int64) error {
	if fields(message, items, most-int64(len(message))) < 0 {
		return ErrTooLarge
	}
	return nil
}

// deepest is how deep messages are searched for others.
const deepest = 16

// fields returns what is left of a size without the fields of a message, or of anything else: a text is no message after
// a few bytes. A message that a decoder would refuse at its end counts: the decoder allocates first.
func fields(message []byte, items int, left int64) int64 {
	for len(message) > 0 && left >= 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			break
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				break
			}
			message = message[n:]
			continue
		}
		content, n := protowire.ConsumeBytes(message)
		if n < 0 {
			break
		}
		message = message[n:]
		left -= ofField
		if items == 0 {
			left -= ofItem - ofField
		}
		if items > -deepest {
			left = fields(content, items-1, left)
		}
	}
	return left
}
