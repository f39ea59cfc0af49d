package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Bounds of a list of services in JSON.
const (
	MaxList        = 16 << 20 // bytes
	MaxListed      = 20_000   // services
	MaxServiceSize = 1 << 20  // bytes of one service
)

// CodeTooLarge is the code of a list beyond its bounds.
const CodeTooLarge = "too_large"

// ReadList reads {"services": [...]} and calls each for the JSON of one service at a time, because a decoded body is up to 50
// times as large. An error of each ends the reading, and is returned. Any other error is a vip.Problem of the whole list,
// with the field of a wrong key. Found reports whether the list is there, which can be empty.
func ReadList(body []byte, each func(service json.RawMessage) error) (found bool, err error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	fail := func(err error) (bool, error) {
		why := strings.TrimPrefix(err.Error(), "json: ")
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			why = "unexpected end of input"
		}
		return false, vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf("is not valid JSON near byte %d: %s", dec.InputOffset(), why)}
	}
	expect := func(want json.Delim) error {
		tok, err := dec.Token()
		if err == nil && tok != want {
			err = errors.New(`the body must be {"services": [...]}`)
		}
		return err
	}
	if err := expect('{'); err != nil {
		return fail(err)
	}
	for n := 0; dec.More(); found = true {
		key, err := dec.Token()
		if err != nil {
			return fail(err)
		}
		switch {
		case key != "services":
			return false, vip.Problem{Code: vip.CodeUnknownKey, Field: strict.Join("", key.(string)), Message: "unknown key", Hint: `the only valid key is "services"`}
		case found:
			return false, vip.Problem{Code: vip.CodeInvalid, Field: "services", Message: "is defined twice", Hint: "keep one of them"}
		}
		if err := expect('['); err != nil {
			return fail(err)
		}
		for ; dec.More(); n++ {
			var raw json.RawMessage
			if err := dec.Decode(&raw); err != nil {
				return fail(err)
			}
			switch {
			case n == MaxListed:
				return false, vip.Problem{Code: CodeTooLarge, Message: fmt.Sprintf("the body has more than %d services", MaxListed)}
			case len(raw) > MaxServiceSize:
				return false, vip.Problem{Code: CodeTooLarge, Message: fmt.Sprintf("services[%d] is larger than %d MiB", n, MaxServiceSize>>20)}
			}
			if err := each(raw); err != nil {
				return false, err
			}
		}
		if err := expect(']'); err != nil {
			return fail(err)
		}
	}
	if err := expect('}'); err != nil {
		return fail(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fail(errors.New("unexpected data after the object"))
	}
	return found, nil
}

// BuildIn is Build for a service with the problems of its decoding, which is checked against pools, too.
func (s *Service) BuildIn(pools []Pool, source, origin string, decoded []vip.Problem) (vip.Service, []vip.Problem) {
	out, problems := s.Build(source, origin)
	if problems = append(problems, CheckAgainstPools(s, pools)...); len(decoded)+len(problems) > 0 {
		problems = Merge(decoded, problems)
	}
	return out, problems
}
