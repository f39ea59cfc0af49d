package strict

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/ironvip/ironvip/vip"
)

// Values is which values a key has, as the tag values of its field states: "off|on" are words,
// "1..1000" and "10ms..10s" are bounds, and "name..253" is a name of up to 253 bytes, see CheckName.
type Values struct {
	Words     []string
	Low, High string
}

// ValuesOf returns the values of a field.
func ValuesOf(f reflect.StructField) (v Values) {
	tag := f.Tag.Get("values")
	if low, high, bounds := strings.Cut(tag, ".."); bounds {
		v.Low, v.High = low, high
	} else if tag != "" {
		v.Words = strings.Split(tag, "|")
	}
	return v
}

// IsName reports whether the values are names.
func (v Values) IsName() bool { return v.Low == "name" }

// CheckName requires a name of up to most bytes that messages and metrics can show.
func CheckName(s string, most int) error {
	if len(s) > most || strings.ContainsFunc(s, func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }) {
		return vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf("wants up to %d printable characters without spaces", most)}
	}
	return nil
}

// CheckWord requires one of the words in use. The first one can be "", which its hint leaves out.
func CheckWord(word string, use ...string) error {
	if slices.Contains(use, word) {
		return nil
	}
	return vip.Problem{Code: vip.CodeInvalid, Message: Quote(word) + " is not a known value", Hint: OneOf(word, use[slices.Index(use, "")+1:]...)}
}

// check reports a decoded value that the key does not have.
func (v Values) check(value reflect.Value) error {
	isTime := value.Kind() == reflect.Int64
	switch {
	case value.Kind() == reflect.Pointer && value.IsNil():
		return nil
	case value.Kind() == reflect.Pointer:
		return v.check(value.Elem())
	case v.Words != nil:
		return CheckWord(value.String(), v.Words...)
	case v.IsName():
		return CheckName(value.String(), int(bound(v.High, isTime)))
	case v.High == "" || value.Int() >= bound(v.Low, isTime) && value.Int() <= bound(v.High, isTime):
		return nil
	}
	hint := "use " + v.Low + " to " + v.High
	if isTime {
		hint = fmt.Sprintf("use %q to %q", v.Low, v.High)
	}
	return vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprint(value.Interface()) + " is out of bounds", Hint: hint}
}

// bound reads a bound. A tag with another text is a programming error and panics.
func bound(text string, isTime bool) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if isTime {
		var d time.Duration
		d, err = time.ParseDuration(text)
		n = int64(d)
	}
	if err != nil {
		panic("strict: no bound: " + text)
	}
	return n
}
