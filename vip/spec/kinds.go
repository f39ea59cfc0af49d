package spec

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Type is the type of a field: which values it has, and how they are read from a spec and written to
// one.
type Type interface {
	// build reads the field in of a spec to the Go field out. It reports a bad value with its key.
	build(b *builder, key string, in, out reflect.Value)
	// write is the inverse of build.
	write(out, in reflect.Value)
	// document returns the values and the default in Markdown, and the words of a choice.
	document() (values, def string, words []string)
}

// kind is the Type of fields that are an In in a spec and an Out in package vip. Without show, both
// are the same type, and so without read.
type kind[In, Out any] struct {
	values, def string
	words       []string
	read        func(b *builder, key string, in In) Out
	show        func(Out) In
}

func (k kind[In, Out]) build(b *builder, key string, in, out reflect.Value) {
	if k.read == nil {
		out.Set(in)
		return
	}
	*out.Addr().Interface().(*Out) = k.read(b, key, *in.Addr().Interface().(*In))
}

func (k kind[In, Out]) write(out, in reflect.Value) {
	if k.show == nil {
		in.Set(out)
		return
	}
	*in.Addr().Interface().(*In) = k.show(*out.Addr().Interface().(*Out))
}

func (k kind[In, Out]) document() (values, def string, words []string) {
	return k.values, k.def, k.words
}

// word is the Type of one of a few values, by their names. Without a text, it is def.
func word[T comparable](def T, all ...T) Type {
	k := kind[string, T]{def: "none"}
	for _, v := range all {
		k.words = append(k.words, fmt.Sprint(v))
		if v == def {
			k.def = "`" + fmt.Sprint(v) + "`"
		}
	}
	k.values = "`" + strings.Join(k.words, "`, `") + "`"
	k.read = func(b *builder, key, text string) (none T) {
		if text == "" {
			return def
		}
		if i := b.word(key, text, k.words); i >= 0 {
			return all[i]
		}
		return none
	}
	k.show = func(v T) string {
		if i := slices.Index(all, v); i >= 0 {
			return k.words[i]
		}
		return ""
	}
	return k
}

// word returns the index of a text among words, or -1 without a text. It reports another text.
func (b *builder) word(key, text string, words []string) int {
	i := slices.Index(words, text)
	if i < 0 && text != "" {
		b.bad(key, strict.OneOf(text, words...), "%s is not a known value", strict.Quote(text))
	}
	return i
}

// onUnhealthy is the Type of on_unhealthy. Its default is not written.
var onUnhealthy = kind[string, bool]{def: "`drain`", words: []string{"drain", "reset"},
	read: func(b *builder, key, text string) bool { return b.word(key, text, []string{"drain", "reset"}) == 1 },
	show: func(reset bool) string {
		if reset {
			return "reset"
		}
		return ""
	}}

// times are the time spans from least to most, in whole steps.
type times struct{ least, most, def, step time.Duration }

func (t times) values() string {
	whole := map[time.Duration]string{time.Second: " in whole seconds", time.Millisecond: " in whole milliseconds"}
	return quoted(t.least) + " to " + quoted(t.most) + whole[t.step]
}

func quoted(d time.Duration) string { return fmt.Sprintf("`%q`", Duration(d)) }

// read returns 0 for a time span out of bounds.
func (t times) read(b *builder, key string, in *Duration) time.Duration {
	if in == nil {
		return t.def
	}
	d := time.Duration(*in)
	if d < t.least || d > t.most || d%t.step != 0 {
		b.bad(key, "use "+strings.ReplaceAll(t.values(), "`", ""), "%s is out of bounds", *in)
		return 0
	}
	return d
}

// span is the Type of a time span.
func span(t times) Type {
	return kind[*Duration, time.Duration]{values: t.values(), def: quoted(t.def), read: t.read,
		show: func(d time.Duration) *Duration { return new(Duration(d)) }}
}

// slowStart is the Type of slow_start. "0s" is off, which is not written.
var (
	slowStarts = times{vip.MinSlowStart, vip.MaxSlowStart, 0, time.Second}
	slowStart  = kind[*Duration, vip.Seconds]{
		read: func(b *builder, key string, in *Duration) vip.Seconds {
			if in == nil || *in == 0 {
				return 0
			}
			return vip.Seconds(slowStarts.read(b, key, in) / time.Second)
		},
		show: func(s vip.Seconds) *Duration {
			if s == 0 {
				return nil
			}
			return new(Duration(s.Duration()))
		}}
)

// affinityTimes are the values of affinity.timeout.
var affinityTimes = times{time.Second, vip.MaxAffinity, vip.DefaultAffinity, time.Second}

var affinity = kind[*Affinity, time.Duration]{
	read: func(b *builder, key string, in *Affinity) time.Duration {
		if in == nil {
			return 0
		}
		return affinityTimes.read(b, key+".timeout", in.Timeout)
	},
	show: func(d time.Duration) *Affinity {
		if d == 0 {
			return nil
		}
		return &Affinity{Timeout: new(Duration(d))}
	},
}

// number reads a number from least to most.
func (b *builder) number(key string, n, least, most int, values string) int {
	if n < least || n > most {
		b.bad(key, "use "+values, "%d is out of bounds", n)
		return 0
	}
	return n
}

// limit is the Type of a number from 0 to most. Values is a format for most.
func limit[T uint8 | uint16 | uint32](most int, values string) Type {
	values = fmt.Sprintf(values, most)
	return kind[int, T]{values: values, def: "0",
		read: func(b *builder, key string, n int) T { return T(b.number(key, n, 0, most, values)) },
		show: func(v T) int { return int(v) }}
}

// oneOrNone are the values of a limit that is off with 0.
const oneOrNone = "1 to %d, or 0 for none"

// count is the Type of rise and fall.
func count(def uint8) Type {
	values := fmt.Sprintf("1 to %d", vip.MaxRiseFall)
	return kind[*int, uint8]{values: values, def: fmt.Sprint(def),
		read: func(b *builder, key string, n *int) uint8 {
			if n == nil {
				return def
			}
			return uint8(b.number(key, *n, 1, vip.MaxRiseFall, values))
		},
		show: func(v uint8) *int { return new(int(v)) }}
}

// label is the Type of an optional DNS label.
var label = kind[string, string]{values: "DNS label", read: func(b *builder, key, text string) string {
	if text != "" {
		b.label(key, text)
	}
	return text
}}

// text is the Type of a text of a health check that matches a pattern. Is says what such a text is.
func text(def, pattern, is, hint string) Type {
	matches := regexp.MustCompile(pattern)
	return kind[string, string]{values: fmt.Sprintf("up to %d bytes", maxCheckText), def: "`" + def + "`", read: func(b *builder, key, text string) string {
		switch {
		case text == "":
			return def
		case len(text) > maxCheckText:
			b.bad(key, "", "%d bytes are more than %d", len(text), maxCheckText)
		case !matches.MatchString(text):
			b.bad(key, hint, "%s is not %s", strict.Quote(text), is)
		}
		return text
	}}
}

// status is the Type of the expected status codes of a health check.
var status = kind[string, string]{values: "codes and ranges: `200`, `200-299,404`", def: "`" + vip.DefaultCheckStatus + "`", read: func(b *builder, key, text string) string {
	if _, err := ParseStatus(text); err != nil && text != "" {
		b.bad(key, `use codes and ranges, such as "200" or "200-299,404"`, "%s", err)
	}
	return cmp.Or(text, vip.DefaultCheckStatus)
}}

var anyText = text("", "", "", "")

var flag = kind[bool, bool]{values: "`true`, `false`", def: "`false`"}

// prefixes is the Type of a list of ranges of addresses, of the service's families.
var prefixes = kind[[]string, []netip.Prefix]{values: fmt.Sprintf("up to %d prefixes or addresses, IPv4 and IPv6", MaxRanges), def: "none",
	read: (*builder).ranges, show: texts[netip.Prefix]}
