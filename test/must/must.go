// Package must ends a test at a failed step or at a value that is not the expected one.
package must

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/ironvip/ironvip/test/expect"
)

// T is a test, a benchmark, or a property of rapid.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Succeed ends the test if err is not nil. About says what failed: a format and its arguments, or nothing.
func Succeed(t T, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(expect.Failure(err, about))
	}
}

// Equal ends the test unless got equals want. About says what the value is: a format and its arguments, or nothing.
func Equal[V comparable](t T, got, want V, about ...any) {
	t.Helper()
	if got != want {
		t.Fatal(expect.Report(got, want, about))
	}
}

// SameList is Equal for lists.
func SameList[V comparable](t T, got, want []V, about ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatal(expect.Report(got, want, about))
	}
}

// NoDiff ends the test at a difference of two values, as cmp.Diff(want, got) returns it.
func NoDiff(t T, diff string, about ...any) {
	t.Helper()
	if diff != "" {
		t.Fatal(expect.Difference(diff, about))
	}
}

// Empty ends the test unless a list, a map, a channel or a text has no elements.
func Empty(t T, got any, about ...any) {
	t.Helper()
	if reflect.ValueOf(got).Len() > 0 {
		t.Fatal(expect.Limit(got, "nothing", "", about))
	}
}

// Len ends the test unless a list, a map, a channel or a text has this number of elements.
func Len(t T, got any, want int, about ...any) {
	t.Helper()
	if n := reflect.ValueOf(got).Len(); n != want {
		t.Fatal(expect.Limit(got, fmt.Sprint("a length of ", want, ", not"), n, about))
	}
}

// AtMost ends the test if got is more than most.
func AtMost[V cmp.Ordered](t T, got, most V, about ...any) {
	t.Helper()
	if got > most {
		t.Fatal(expect.Limit(got, "at most", most, about))
	}
}

// AtLeast ends the test if got is less than least.
func AtLeast[V cmp.Ordered](t T, got, least V, about ...any) {
	t.Helper()
	if got < least {
		t.Fatal(expect.Limit(got, "at least", least, about))
	}
}

// Between ends the test if got is less than least or more than most.
func Between[V cmp.Ordered](t T, got, least, most V, about ...any) {
	t.Helper()
	if got < least || got > most {
		t.Fatal(expect.Limit(got, "at least", fmt.Sprint(least, ", at most ", most), about))
	}
}

// True ends the test unless it is so. About says what is wrong then.
func True(t T, is bool, about ...any) {
	t.Helper()
	if !is {
		t.Fatal(expect.Wrong(about))
	}
}

// False ends the test if it is so. About says what is wrong then.
func False(t T, is bool, about ...any) {
	t.Helper()
	if is {
		t.Fatal(expect.Wrong(about))
	}
}

// Is ends the test unless the error is the one that is wanted.
func Is(t T, got, want error, about ...any) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatal(expect.Report(got, want, about))
	}
}

// Get returns a value, or ends the test that the returned function receives, if there is an error:
//
//	conn := must.Get(net.Dial("tcp", addr))(t)
func Get[V any](v V, err error) func(t T) V {
	return func(t T) V {
		t.Helper()
		Succeed(t, err)
		return v
	}
}
