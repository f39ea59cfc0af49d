package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
	"pgregory.net/rapid"
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
		if got := Age(c.d); got != c.age {
			t.Errorf("Age(%v) = %q, want %q", c.d, got, c.age)
		}
		if got := Span(c.d); got != c.span {
			t.Errorf("Span(%v) = %q, want %q", c.d, got, c.span)
		}
		if got := Ago(now.Add(-c.d), now); got != c.rela {
			t.Errorf("Ago(%v) = %q, want %q", c.d, got, c.rela)
		}
	}
	if Ago(time.Time{}, now) != "never" || Since(time.Time{}, now) != None {
		t.Error("the zero time is not shown as never")
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1204: "1 204", 1234567: "1 234 567", -999: "-999", -1204: "-1 204"} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) = %q, want %q", n, got, want)
		}
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
	if !strings.Contains(coloured, "\x1b[32mhealthy\x1b[0m") {
		t.Errorf("no colour in %q", coloured)
	}
	for sgr := range strings.SplitSeq("\x1b[32m,\x1b[31m,\x1b[0m", ",") {
		coloured = strings.ReplaceAll(coloured, sgr, "")
	}
	if coloured != want {
		t.Errorf("colours move the columns:\n%s", coloured)
	}
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
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
	var out bytes.Buffer
	p := Printer{Out: &out, Err: &out, Format: Name}
	p.Say("said %s", "\x1b[2J")
	p.Label("error", Bad, "\x1b[2J")
	if err := p.Show(View{Names: []string{"\x1b[2J"}}); err != nil {
		t.Fatal(err)
	}
	g := Grid{Rows: [][]Cell{{{Text: "\x1b[2J"}}}}
	if s := out.String() + g.Text(&p) + p.Paint("\x1b[2J", Plain); strings.Contains(s, "\x1b") {
		t.Errorf("an escape sequence got through: %q", s)
	}
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
		if err := p.Show(view); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("%s:\n%s\nwant\n%s", format, out.String(), want)
		}
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
			if err := p.Stream(v); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != want {
			t.Errorf("%s: %q, want %q", format, out.String(), want)
		}
	}
}

// Any string from the API is read back unchanged from the YAML.
func TestYAMLRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "doc")
		var want map[string]string // JSON replaces what is not UTF-8
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := writeYAML(&out, in); err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		if err := yaml.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatalf("%v in\n%s", err, out.String())
		}
		if len(got) != len(want) {
			t.Fatalf("got %q, want %q", got, want)
		}
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
	if f != YAML {
		t.Error("a refused format changed the value")
	}
}

func TestColorWantedOnlyOnTerminals(t *testing.T) {
	env := func(vars map[string]string) func(string) string {
		return func(name string) string { return vars[name] }
	}
	if ColorWanted(&bytes.Buffer{}, env(nil)) {
		t.Error("colour wanted on a buffer")
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if ColorWanted(file, env(nil)) {
		t.Error("colour wanted in a file")
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
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
		if got := ColorWanted(terminal, env(c.vars)); got != c.want {
			t.Errorf("on a terminal with %v: %v, want %v", c.vars, got, c.want)
		}
	}
}
