package strict

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNearest(t *testing.T) {
	keys := []string{"address", "backends", "drain_timeout", "name", "node_port", "port", "ports", "protocol", "scheduler", "target_port", "weight"}
	for word, want := range map[string]string{
		"adress": "address", "prot": "protocol", "backend": "backends", "Port": "port", "wieght": "weight", "schedular": "scheduler",
		"drain-timeout": "drain_timeout", "target": "target_port", "nam": "name", "zone": "", "": "", "x": "",
		strings.Repeat("port", 1000): "",
	} {
		if got := Nearest(word, keys); got != want {
			t.Errorf("%q is taken for %q, want %q", word, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "acb", 1}, {"abc", "bc", 1}, {"kitten", "sitting", 3}} {
		if got := distance(test.a, test.b); got != test.want || distance(test.b, test.a) != test.want {
			t.Errorf("%q and %q are %d apart, want %d", test.a, test.b, got, test.want)
		}
	}
}

func TestParent(t *testing.T) {
	for path, want := range map[string]string{
		"a": "", "a.b": "a", "a[3]": "a", "a[3].b": "a[3]", `a."b.c"`: "a", `a."b\".c"`: "a", `"x"`: "", `a."b[0]"[1]`: `a."b[0]"`, "": "",
	} {
		if got := Parent(path); got != want {
			t.Errorf("around %s is %q, want %q", path, got, want)
		}
	}
}

// Parent is the inverse of Join for any key.
func FuzzPath(f *testing.F) {
	f.Add("a.b", `c"d`)
	f.Add("", "\\")
	f.Add("a[0]", "")
	f.Fuzz(func(t *testing.T, a, b string) {
		path := Join("", a)
		for _, longer := range []string{Join(path, b), Index(path, 7)} {
			if got := Parent(longer); got != path {
				t.Errorf("around %s is %s, want %s", longer, got, path)
			}
		}
	})
}

func TestParentOfPathsThatNobodyMakesEnds(t *testing.T) {
	for _, path := range []string{`"`, `.`, `[`, `a."`, `\"`} {
		for range 10 {
			path = Parent(path)
		}
		if path != "" {
			t.Errorf("left: %q", path)
		}
	}
}

// A list of prefixes can have ranges: each becomes the fewest prefixes that have its addresses.
func TestRangesInListsOfPrefixes(t *testing.T) {
	for _, c := range []struct {
		list    []any
		want    string // prefixes, and problems
		invalid bool
	}{
		{list: []any{"10.0.0.200-10.0.0.223"}, want: "10.0.0.200/29 10.0.0.208/28"},
		{list: []any{"192.0.2.0/24", "10.0.0.1 - 10.0.0.2", "2001:db8::/64"}, want: "192.0.2.0/24 10.0.0.1/32 10.0.0.2/32 2001:db8::/64"},
		{list: []any{"2001:db8::-2001:db8::ffff", "10.0.0.7-10.0.0.7"}, want: "2001:db8::/112 10.0.0.7/32"},
		{list: []any{"0.0.0.1-255.255.255.254"}, want: "62 prefixes"},
		{list: []any{"::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"}, want: "254 prefixes"},
		{list: []any{"0.0.0.0-255.255.255.255"}, want: "0.0.0.0/0"},
		{list: []any{"10.0.0.9-10.0.0.8"}, want: `x[0]: "10.0.0.9-10.0.0.8" is not a range of addresses`, invalid: true},
		{list: []any{"10.0.0.0/24", "10.0.1.0-9"}, want: `x[1]: "10.0.1.0-9" is not a range of addresses`, invalid: true},
		{list: []any{"10.0.0.1-2001:db8::1"}, want: `x[0]: "10.0.0.1-2001:db8::1" is not a range of addresses`, invalid: true},
		{list: []any{"2001:db8::1-2001:db8::2%eth0"}, want: `x[0]: "2001:db8::1-2001:db8::2%eth0" is not`, invalid: true},
		{list: []any{int64(7)}, want: "x[0]: wants a string, has the number 7", invalid: true},
	} {
		var into struct {
			X []netip.Prefix `toml:"x"`
		}
		problems := Decode(map[string]any{"x": c.list}, &into, "")
		got := strings.Trim(fmt.Sprint(into.X), "[]")
		if len(into.X) > 50 {
			got = fmt.Sprintf("%d prefixes", len(into.X))
		}
		if c.invalid && len(problems) == 1 {
			got = problems[0].Field + ": " + problems[0].Message
		}
		if !strings.HasPrefix(got, c.want) || c.invalid != (len(problems) > 0) {
			t.Errorf("%v: %s, problems %v; want %s", c.list, got, problems, c.want)
		}
	}
}

type sample struct {
	Text   string            `toml:"text"`
	Number *int              `toml:"number"`
	On     bool              `toml:"on"`
	Range  netip.Prefix      `toml:"range"`
	Addr   netip.Addr        `toml:"addr"`
	Words  map[string]string `toml:"words"`
	Items  []item            `toml:"items,omitempty"`
	Own    int               `toml:"-"`
}

type item struct {
	Size int `toml:"size"`
	shape
}

type shape struct {
	Round bool `toml:"round"`
}

func (i *item) Defaults() { i.Size = 7 }

func TestDecode(t *testing.T) {
	var got sample
	problems := Decode(map[string]any{
		"text": "x", "number": int64(3), "on": true, "range": "10.0.0.0/8", "addr": "10.0.0.1", "words": map[string]any{"a": "b"},
		"items": []map[string]any{{}, {"size": int64(1), "round": true}}, "soon": int64(1), "-": "x", "Own": int64(1),
	}, &got, "at")
	three := 3
	want := sample{Text: "x", Number: &three, On: true, Range: netip.MustParsePrefix("10.0.0.0/8"), Addr: netip.MustParseAddr("10.0.0.1"),
		Words: map[string]string{"a": "b"}, Items: []item{{Size: 7}, {1, shape{true}}}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.AllowUnexported(item{})); diff != "" {
		t.Error(diff)
	}
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.Error())
	}
	if diff := cmp.Diff([]string{"at.-: unknown key", "at.Own: unknown key", "at.soon: unknown key"}, texts); diff != "" {
		t.Error(diff)
	}
}

// A text with half a UTF-16 pair is refused: encoding/json would put another character there.
func TestHalfPairs(t *testing.T) {
	for text, good := range map[string]bool{
		`\ud83d\ude00`: true, `\u00e9`: true, `\\ud800`: true, `\\\\ud800`: true, `\ufffd`: true, `\n\ud83d\ude00\"`: true, `\uD83D\uDE00`: true,
		`\ud800`: false, `\udc00`: false, `\ud800\ud800`: false, `\ude00\ud83d`: false, `a\ud800z`: false, `\ud800\n`: false,
		`\ud800\u0041`: false, `\ud83d\ude00\udc00`: false, `\\\ud800`: false, `\uDFFF`: false, `\ud8`: false, `\ud800\u`: false,
	} {
		for _, body := range []string{`{"a":"` + text + `"}`, `{"` + text + `":1}`, `{"a":[{"b":"` + text + `"}]}`} {
			if _, problems := ParseJSON([]byte(body)); (len(problems) == 0) != good {
				t.Errorf("%s: %v", body, problems)
			}
		}
	}
	_, problems := ParseJSON([]byte("{\n \"a\": \"\\ud800\"}"))
	if len(problems) != 1 || problems[0].Message != `not valid JSON near line 2, column 8: \ud800 is half of a character` {
		t.Errorf("%+v", problems)
	}
}

func TestDecodeReportsEveryError(t *testing.T) {
	var got sample
	problems := Decode(map[string]any{
		"text": int64(1), "number": "3", "on": "yes", "range": "10.0.0.1/8", "addr": "x", "words": []any{}, "items": []any{nil, "x", map[string]any{"size": 1.5}},
	}, &got, "")
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.Error()+" | "+p.Hint)
	}
	want := []string{
		`addr: "x": ParseAddr("x"): unable to parse IP | `,
		`items[0]: wants a value, has null | remove it`,
		`items[1]: wants a table, has the string "x" | write keys and their values in braces`,
		`items[2].size: wants a whole number, has the number 1.5 | `,
		`number: wants a whole number, has the string "3" | write 3, without quotes`,
		`on: wants true or false, has the string "yes" | write true or false, without quotes`,
		`range: 10.0.0.1/8 is not the first address of its range | write 10.0.0.0/8, or 10.0.0.1/32 for the one address`,
		`text: wants a string, has the number 1 | put it in quotes`,
		`words: wants a table, has a list | write keys and their values in braces`,
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Error(diff)
	}
	if got.Number != nil {
		t.Error("a pointer was set to what does not fit")
	}
}

// Decoding a table costs no lookup of the struct's fields by reflection.
func TestDecodeAllocations(t *testing.T) {
	var into struct {
		A, B, C, D, E, F string `toml:"-"`
		Name             string `toml:"name"`
	}
	tree := map[string]any{"name": "x"}
	if got := testing.AllocsPerRun(100, func() { Decode(tree, &into, "") }); got > 3 {
		t.Errorf("%v allocations", got)
	}
}

// A name has a largest length, and a text that may be missing some words.
func TestValues(t *testing.T) {
	for text, want := range map[string]string{
		`{"name": "a-c", "word": "on"}`: "", `{"name": "", "word": ""}`: "",
		`{"name": "abcd"}`: "name: wants up to 3 printable characters without spaces | ", `{"name": "a c"}`: "name: wants up to 3 printable characters without spaces | ",
		`{"word": "of"}`: `word: "of" is not a known value | did you mean "off"? use off, on`,
	} {
		tree, _ := ParseJSON([]byte(text))
		var into struct {
			Word string `toml:"word" values:"|off|on"`
			Name string `toml:"name" values:"name..3"`
		}
		got := ""
		for _, p := range Decode(tree, &into, "") {
			got += p.Error() + " | " + p.Hint
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
