package answer

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// repeated is a text without an end.
type repeated struct{ text string }

func (r repeated) Read(p []byte) (n int, _ error) {
	for n+len(r.text) <= len(p) {
		n += copy(p[n:], r.text)
	}
	return max(n, copy(p, r.text)), nil
}

func (r repeated) Close() error { return nil }

// A body ends with its bytes, or sooner if it has so many objects that they would take too much when decoded. Of an error,
// only the beginning is read.
func TestBound(t *testing.T) {
	const limit = 1 << 20
	for _, c := range []struct {
		text   string
		status int
		json   bool
		limit  int64
		most   int64
		err    error
	}{
		{"0123456789", http.StatusOK, true, limit, limit, errors.New("the answer is longer than 1 MiB")},
		{"{},", http.StatusOK, true, 1 << 40, MaxDecoded / (ofObject + ofElement) * 3, ErrTooLarge},
		{"null,", http.StatusOK, true, 1 << 40, MaxDecoded / (ofObject + ofElement) * 5, ErrTooLarge},
		{`"":0,`, http.StatusOK, true, 1 << 40, MaxDecoded / ofElement * 5, ErrTooLarge},
		{"{},", http.StatusOK, false, limit, limit, errors.New("the answer is longer than 1 MiB")},
		{"{},", http.StatusInternalServerError, true, limit, maxRefusal, nil},
		{"moved", http.StatusFound, false, limit, maxRefusal, nil},
	} {
		r := &http.Response{StatusCode: c.status, Body: repeated{c.text}}
		Bound(r, c.limit, c.json)
		n, err := io.Copy(io.Discard, r.Body)
		if n > c.most || c.err == nil && err != nil || c.err != nil && (err == nil || err.Error() != c.err.Error()) {
			t.Errorf("%d times %s: %d bytes and %v, want at most %d and %v", c.status, c.text, n, err, c.most, c.err)
		}
	}
}

// Objects and empty elements count in any part of a body.
func TestCheckJSON(t *testing.T) {
	one := `[{"a":null},[]]`
	const size = 15 + 2*ofObject + ofElement
	expect.Equal(t, CheckJSON([]byte(one), size), nil, "the exact size")
	expect.Equal(t, CheckJSON([]byte(one), size-1), ErrTooLarge, "less")
	var parts text
	for _, c := range strings.Split(one, "") {
		parts.add([]byte(c))
	}
	expect.Equal(t, parts.size, int64(size), "the size of its parts")
}

// A message that a decoder would refuse at its end counts.
func TestCheckProtobuf(t *testing.T) {
	list := "\x12\x04" + "\x12\x00" + "\x12\x00" // an envelope with two items
	const size = 6 + ofField + 2*ofItem
	for _, message := range []string{list, list + "\x07"} {
		expect.Equal(t, CheckProtobuf([]byte(message), 1, size+1), nil, "one more")
		expect.Equal(t, CheckProtobuf([]byte(message), 1, size-1), ErrTooLarge, "less")
	}
	expect.Equal(t, CheckProtobuf([]byte(list), 0, 6+ofItem+2*ofField), nil, "items above")
	deep := strings.Repeat("\x0a\x7f", 100_000)
	expect.Equal(t, CheckProtobuf([]byte(deep), 1, MaxDecoded), nil, "broken nesting")
}
