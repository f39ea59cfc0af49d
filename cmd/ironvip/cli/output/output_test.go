package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func TestTimes(t *testing.T) {
	now := time.Date(2026, 11, 8, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		d               time.Duration
		age, span, rela string
	}{
		{0, "0s", "0s", "0s ago"},
		{-5 * time.Minute, "0s", "0s", "in 5m"},
		{-500 * time.Millisecond, "0s", "0s", "0s ago"},
		{59900 * time.Millisecond, "59s", "59s", "59s ago"},
		{time.Minute, "1m", "1m", "1m ago"},
		{130 * time.Second, "2m", "2m10s", "2m ago"},
		{3*time.Hour + 12*time.Second, "3h", "3h", "3h ago"},
		{3*time.Hour + 12*time.Minute, "3h", "3h12m", "3h ago"},
		{99*time.Hour + 59*time.Minute, "4d", "4d3h", "4d ago"},
		{400 * 24 * time.Hour, "400d", "400d", "400d ago"},
	} {
		expect.Equal(t, Age(c.d), c.age, "Age(%v)", c.d)
		expect.Equal(t, Span(c.d), c.span, "Span(%v)", c.d)
		expect.Equal(t, Ago(now.Add(-c.d), now), c.rela, "Ago(%v)", c.d)
	}
	if Ago(time.Time{}, now) != "never" || Since(time.Time{}, now) != None {
		t.Error("the zero time is not shown as never")
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1204: "1 204", 1234567: "1 234 567", -999: "-999", -1204: "-1 204"} {
		expect.Equal(t, Count(n), want, "Count(%d)", n)
	}
	if Plural(1, "service") != "1 service" || Plural(1204, "service") != "1 204 services" {
		t.Error("plural")
	}
}

func TestGridAlignsByCharactersNotColours(t *testing.T) {
	g := NewGrid("NAME", "STATE", "+SIZE", "AGE")
	g.Add("wéb", Cell{Text: "healthy", Style: Good}, 12, "")
	g.Add("database", Cell{Text: "down", Style: Bad}, 3, "3h")
	want := "NAME      STATE    AGE\nwéb       healthy  -\ndatabase  down     3h\n"
	if got := g.Text(&Printer{}); got != want {
		t.Errorf("plain:\n%s\nwant\n%s", got, want)
	}
	coloured := g.Text(&Printer{ColorOut: true})
	expect.Contains(t, coloured, "\x1b[32mhealthy\x1b[0m", "no colour in")
	for sgr := range strings.SplitSeq("\x1b[32m,\x1b[31m,\x1b[0m", ",") {
		coloured = strings.ReplaceAll(coloured, sgr, "")
	}
	expect.Equal(t, coloured, want, "colours move the columns:\n")
	want = "NAME      STATE    SIZE  AGE\nwéb       healthy  12    -\ndatabase  down     3     3h\n"
	if got := g.Text(&Printer{Format: Wide}); got != want {
		t.Errorf("wide:\n%s\nwant\n%s", got, want)
	}
}

func TestCleanDisarmsControlCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"plain":               "plain",
		"two\nlines\tand":     "two lines and",
		"\x1b[31mred":         "?[31mred",
		"\u202eright to left": "?right to left",
		"\u009b31m":           "?31m",
	} {
		expect.Equal(t, Clean(in), want, "Clean(%q)", in)
	}
	var out bytes.Buffer
	p := Printer{Out: &out, Err: &out, Format: Name}
	p.Say("said %s", "\x1b[2J")
	p.Label("error", Bad, "\x1b[2J")
	must.Succeed(t, p.Show(View{Names: []string{"\x1b[2J"}}))
	g := Grid{Rows: [][]Cell{{{Text: "\x1b[2J"}}}}
	s := out.String() + g.Text(&p) + p.Paint("\x1b[2J", Plain)
	expect.False(t, strings.Contains(s, "\x1b"), "an escape sequence got through: %q", s)
}

type doc struct {
	Zulu  string         `json:"zulu"`
	Alpha []int          `json:"alpha"`
	When  time.Time      `json:"when"`
	None  *string        `json:"none"`
	Empty map[string]any `json:"empty"`
	Text  string         `json:"text"`
}

var sample = doc{Zulu: "no", Alpha: []int{1, 2}, When: time.Date(2026, 11, 8, 12, 1, 7, 0, time.UTC),
	Empty: map[string]any{}, Text: "a < b\nand more"}

func TestShowFormats(t *testing.T) {
	view := View{Data: sample, Names: []string{"one", "two"},
		Text: func(p *Printer) string { return string(p.Format) + "\n" }}
	for format, want := range map[Format]string{
		Table: "table\n",
		Wide:  "wide\n",
		Name:  "one\ntwo\n",
		JSON: `{
  "zulu": "no",
  "alpha": [
    1,
    2
  ],
  "when": "2026-11-08T12:01:07Z",
  "none": null,
  "empty": {},
  "text": "a < b\nand more"
}
`,
		YAML: `zulu: "no"
alpha:
  - 1
  - 2
when: "2026-11-08T12:01:07Z"
none: null
empty: {}
text: "a < b\nand more"
`,
	} {
		var out bytes.Buffer
		p := Printer{Out: &out, Format: format}
		must.Succeed(t, p.Show(view))
		expect.Equal(t, out.String(), want, "%s:\n%s\nwant\n", format, out.String())
	}
}

func TestStreamKeepsDocumentsApart(t *testing.T) {
	for format, want := range map[Format]string{
		JSON:  "{\"a\":1}\n{\"a\":1}\n",
		YAML:  "---\na: 1\n---\na: 1\n",
		Table: "row\nrow\n",
	} {
		var out bytes.Buffer
		p := Printer{Out: &out, Format: format}
		for range 2 {
			v := View{Data: map[string]int{"a": 1}, Text: func(*Printer) string { return "row\n" }}
			must.Succeed(t, p.Stream(v))
		}
		expect.Equal(t, out.String(), want, format)
	}
}

// Any string from the API is read back unchanged from the YAML.
func TestYAMLRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "doc")
		var want map[string]string // JSON replaces what is not UTF-8
		b := must.Get(json.Marshal(in))(t)
		must.Succeed(t, json.Unmarshal(b, &want))
		var out bytes.Buffer
		must.Succeed(t, writeYAML(&out, in))
		var got map[string]string
		err := yaml.Unmarshal(out.Bytes(), &got)
		must.Succeed(t, err, "%v in\n%s", err, out.String())
		must.Len(t, got, len(want), "got %q, want %q", got, want)
		for k, v := range want {
			if got[k] != v {
				t.Fatalf("key %q: got %q, want %q from\n%s", k, got[k], v, out.String())
			}
		}
	})
}

// Words that YAML takes for something else than a string are quoted, as keys too.
func TestYAMLQuotes(t *testing.T) {
	for _, word := range []string{"<<", "no", "1", "null", "~", "a: b"} {
		var out bytes.Buffer
		var got map[string]string
		err := errors.Join(writeYAML(&out, map[string]string{word: word}), yaml.Unmarshal(out.Bytes(), &got))
		if err != nil || got[word] != word {
			t.Errorf("%q: %v, got %q from %s", word, err, got, out.String())
		}
	}
}

func TestFormatFlag(t *testing.T) {
	var f Format
	if err := f.Set("yaml"); err != nil || f != YAML {
		t.Errorf("yaml: %v, %v", f, err)
	}
	err := f.Set("xml")
	if err == nil || err.Error() != "use table, wide, json, yaml or name" {
		t.Errorf("xml: %v", err)
	}
	expect.Equal(t, f, YAML, "a refused format changed the value")
}

func TestColorWantedOnlyOnTerminals(t *testing.T) {
	env := func(vars map[string]string) func(string) string {
		return func(name string) string { return vars[name] }
	}
	expect.False(t, ColorWanted(&bytes.Buffer{}, env(nil)), "colour wanted on a buffer")
	file := must.Get(os.Create(t.TempDir() + "/file"))(t)
	defer file.Close()
	expect.False(t, ColorWanted(file, env(nil)), "colour wanted in a file")
	terminal := must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
	defer terminal.Close()
	for _, c := range []struct {
		vars map[string]string
		want bool
	}{
		{map[string]string{"TERM": "xterm"}, true},
		{map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, false},
		{map[string]string{"TERM": "xterm", "NO_COLOR": ""}, true}, // an empty value counts as unset
		{map[string]string{"TERM": "dumb"}, false},
	} {
		expect.Equal(t, ColorWanted(terminal, env(c.vars)), c.want, "on a terminal with %v", c.vars)
	}
}
func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1535: "1.4 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1023.9 KiB", 1 << 20: "1.0 MiB",
		5<<30 + 700<<20: "5.6 GiB", 1 << 40: "1.0 TiB", 3 << 50: "3.0 PiB", math.MaxUint64: "15.9 EiB",
	} {
		expect.Equal(t, Bytes(n), want, "Bytes(%d)", n)
	}
}
