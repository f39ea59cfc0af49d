// Package prose checks words: American spelling in the documentation, and everywhere the field's
// terms instead of phrases and names of earlier versions, and sentences that begin with a noun. The
// terms are those of docs/glossary.md.
package prose

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/ironvip/ironvip/test/need"
)

// anywhere maps a phrase, in lower case, to its replacement. A common word is not listed, because
// it can be right in another sense.
var anywhere = map[string]string{
	"agenda": "delayqueue", "agendas": "delayqueue",
	"doorbell": "acceptPoller", "doorbells": "acceptPoller",
	"each source is written out": "no static source configured",
	"get in ironvip's way":       "diagnose this host", "gets in ironvip's way": "diagnose this host", "what this host lacks": "diagnose this host",
	"has graves": "pins tombstones",
	"is deaf":    "calls after Close are ignored",
	"is it well": "checking health", "is this node well": "show node health", "a node well": "show node health",
	"is no port":         "invalid port %d: must be 1 to 65535",
	"is no time to wait": "wait must be between 0s and 5m",
	"is there twice":     "is defined twice",
	"it is told":         "is reported", "he is told": "is reported", "they are told": "is reported",
	"it was set to drain by its source":     "no heartbeat for 12s (ttl 10s)",
	"its source assigns its addresses, and": "source provided no",
	"mend":                                  "fix", "mends": "fix", "mended": "fix", "mending": "fix",
	"no services like that": "no matching services",
	"nodehealth":            "healthport",
	"put right":             "repaired", "puts right": "repaired",
	"the defaults count":            "using defaults",
	"what is asked for":             "the first error",
	"what it is beside":             "comparison with alternatives",
	"when something is due of them": "a priority queue keyed by deadline",
	"which writing of":              "version, for compare-and-set",
}

// documents maps British spellings to American ones.
var documents = map[string]string{
	"acknowledgement": "acknowledgment", "behaviour": "behavior", "cancelled": "canceled", "colour": "color", "datacentre": "datacenter",
	"datacentres": "datacenters", "favour": "favor", "honoured": "honored", "initialisation": "initialization", "labelled": "labeled",
	"licence": "license", "neighbour": "neighbor", "neighbours": "neighbors", "organisation": "organization", "serialised": "serialized",
	"tunnelled": "tunneled", "unrecognised": "unrecognized", "virtualisation": "virtualization",
}

// pronoun finds a sentence whose subject the reader has to search for. A sentence begins with a line of a text or of
// a comment, with an item or a cell, or after another sentence.
var pronoun = regexp.MustCompile("(?m)(?:^ *|(?://|#+|[-*|]|[.!?:;][\"')*_`]*)\\s+(?:(?://|#+) )?)(What|That|Those|Whoever)\\b[^,:;.\n]*")

// code is the part of a document that its spelling doesn't concern: blocks, code in a line, and the targets of links.
var code = regexp.MustCompile("```(?s:.*?)```|`[^`\n]*`|\\]\\([^)\n]*\\)|(?m:^(?:    |\t).*$)")

func withoutCode(text string) string {
	return code.ReplaceAllStringFunc(text, func(c string) string { return strings.Repeat("\n", strings.Count(c, "\n")) })
}

// find reports the places of a phrase in a text. Letters before or after it make it another word.
func find(text, phrase string, found func(at int)) {
	for from := 0; ; {
		i := strings.Index(text[from:], phrase)
		if i < 0 {
			return
		}
		at := from + i
		from = at + len(phrase)
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[from:])
		if !unicode.IsLetter(before) && !unicode.IsLetter(after) {
			found(at)
		}
	}
}

func TestWords(t *testing.T) {
	const root = "../.."
	list, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z", "--", "*.md", "*.go", "*.txtar", "*.toml", "*.js", "*.json", "*.sh", "*.yaml", ":!test/prose").Output()
	if err != nil {
		need.Lack(t, "needs a checkout", "git ls-files: "+err.Error())
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) { // deleted, but not committed yet
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		check := func(text string, rules map[string]string) {
			for phrase, instead := range rules {
				find(text, phrase, func(at int) {
					t.Errorf("%s:%d: %q: use %q", name, 1+strings.Count(text[:at], "\n"), phrase, instead)
				})
			}
		}
		for _, at := range pronoun.FindAllSubmatchIndex(content, -1) {
			t.Errorf("%s:%d: %q: begin the sentence with a noun", name, 1+strings.Count(string(content[:at[2]]), "\n"), content[at[2]:at[1]])
		}
		text := strings.ToLower(string(content))
		check(text, anywhere)
		if filepath.Ext(name) == ".md" {
			check(withoutCode(text), documents)
		}
	}
}

func TestFind(t *testing.T) {
	for text, want := range map[string]int{"mend it; he amends, recommends, mends": 1, "mend": 1, "mend mend, 'mend'": 3, "": 0} {
		n := 0
		if find(text, "mend", func(int) { n++ }); n != want {
			t.Errorf("%d times in %q, want %d", n, text, want)
		}
	}
	for text, want := range map[string]int{
		"What is new": 1, "# What is new": 1, "x := 1 // What\n": 1, "// It ends. That\n// is all: those\n": 1, "- Those of a\n  \"That\"": 1, "| a | What |": 1,
		"// It ends\n// here.\n// Those": 1, "* **a.** Whoever": 1, "a what": 0, "\tWhat string": 0, "Whatever": 0, "says What": 0,
	} {
		if got := len(pronoun.FindAllString(text, -1)); got != want {
			t.Errorf("%d sentences in %q, want %d", got, text, want)
		}
	}
	if got := withoutCode("use `colour`:\n\n    colour\n\n```\ncolour\n```\n[a](colour.md) end"); strings.Contains(got, "colour") || !strings.Contains(got, "end") || strings.Count(got, "\n") != 8-1 {
		t.Errorf("left of a document: %q", got)
	}
}

// The documentation fits one head. Words are those that a reader reads, also in tables and code.
func TestLength(t *testing.T) {
	for pattern, most := range map[string]int{"docs/*.md": 45_000, "docs/decisions/*.md": 12_000, "README.md": 1_200, "ARCHITECTURE.md": 1_400, "CHANGELOG.md": 600} {
		pages, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %v, %v", pattern, pages, err)
		}
		words := 0
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for word := range strings.FieldsSeq(string(text)) {
				if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
					words++
				}
			}
		}
		t.Logf("%s: %d words", pattern, words)
		if words > most {
			t.Errorf("%s: %d words are more than %d: shorten, or merge two texts that say the same", pattern, words, most)
		}
	}
}
