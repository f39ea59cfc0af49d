// Package expect reports values that are not the expected ones. The test goes on.
package expect

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// T is a test, a benchmark, or a property of rapid.
type T interface {
	Helper()
	Error(args ...any)
}

// Equal reports got unless it equals want. About says what the value is: a format and its arguments, or nothing.
func Equal[V comparable](t T, got, want V, about ...any) {
	t.Helper()
	if got != want {
		t.Error(Report(got, want, about))
	}
}

// SameList is Equal for lists.
func SameList[V comparable](t T, got, want []V, about ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Error(Report(got, want, about))
	}
}

// NoDiff reports a difference of two values, as cmp.Diff(want, got) returns it: "-" is wanted, "+" is there.
func NoDiff(t T, diff string, about ...any) {
	t.Helper()
	if diff != "" {
		t.Error(Difference(diff, about))
	}
}

// Contains reports a text without a part.
func Contains(t T, got, part string, about ...any) {
	t.Helper()
	if !strings.Contains(got, part) {
		t.Error(Report(got, part, about))
	}
}

// Empty reports elements of a list, a map, a channel or a text.
func Empty(t T, got any, about ...any) {
	t.Helper()
	if reflect.ValueOf(got).Len() > 0 {
		t.Error(Limit(got, "nothing", "", about))
	}
}

// Len reports a list, a map, a channel or a text with another number of elements.
func Len(t T, got any, want int, about ...any) {
	t.Helper()
	if n := reflect.ValueOf(got).Len(); n != want {
		t.Error(Limit(got, fmt.Sprint("a length of ", want, ", not"), n, about))
	}
}

// AtMost reports got if it is more than most.
func AtMost[V cmp.Ordered](t T, got, most V, about ...any) {
	t.Helper()
	if got > most {
		t.Error(Limit(got, "at most", most, about))
	}
}

// AtLeast reports got if it is less than least.
func AtLeast[V cmp.Ordered](t T, got, least V, about ...any) {
	t.Helper()
	if got < least {
		t.Error(Limit(got, "at least", least, about))
	}
}

// Between reports got if it is less than least or more than most.
func Between[V cmp.Ordered](t T, got, least, most V, about ...any) {
	t.Helper()
	if got < least || got > most {
		t.Error(Limit(got, "at least", fmt.Sprint(least, ", at most ", most), about))
	}
}

// True reports that it is not so. About says what is wrong then.
func True(t T, is bool, about ...any) {
	t.Helper()
	if !is {
		t.Error(Wrong(about))
	}
}

// False reports that it is so. About says what is wrong then.
func False(t T, is bool, about ...any) {
	t.Helper()
	if is {
		t.Error(Wrong(about))
	}
}

// Is reports an error that is not the one that is wanted, and that no error is there.
func Is(t T, got, want error, about ...any) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Error(Report(got, want, about))
	}
}

// Succeed reports an error.
func Succeed(t T, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Error(Failure(err, about))
	}
}

// Failure is what Succeed reports.
func Failure(err error, about []any) string { return after(about, err.Error()) }

// Difference is what NoDiff reports.
func Difference(diff string, about []any) string { return after(about, "difference:\n"+diff) }

// Report is what Equal reports.
func Report(got, want any, about []any) string {
	return after(about, fmt.Sprintf("got %s, want %s", quoted(got), quoted(want)))
}

// Limit is what AtMost, AtLeast and Between report.
func Limit(got any, which string, limit any, about []any) string {
	return after(about, fmt.Sprintf("got %s, want %s", quoted(got), strings.TrimSpace(fmt.Sprint(which, " ", limit))))
}

// Wrong is what True and False report.
func Wrong(about []any) string {
	if len(about) == 1 {
		return fmt.Sprint(about[0])
	}
	return fmt.Sprintf(about[0].(string), about[1:]...)
}

// after puts what it is about before a text.
func after(about []any, text string) string {
	switch len(about) {
	case 0:
		return text
	case 1:
		return fmt.Sprint(about[0]) + ": " + text
	}
	return fmt.Sprintf(about[0].(string), about[1:]...) + ": " + text
}

// quoted returns a value as text, in which strings are quoted.
func quoted(v any) string {
	switch v.(type) {
	case string, []string:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprintf("%+v", v)
}
