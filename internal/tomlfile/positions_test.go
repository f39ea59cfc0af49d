package tomlfile

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

const tour = `# a comment with [brackets] and "quotes
title = "x" # [1]
[node]
name = """
two lines ["""
"odd \"key" = 1
[[service]]
name = 'a#b'
ports = [ { port = 80 },
  { port = 81, name = "x" }, # {
  # a comment ]
  { port = 82,
    name = """]""" } ]
labels.team.x = 1

[[service.backends]]
address = "10.0.0.1"
[[service.backends]]
address = "10.0.0.2"
  [[service]]
  when = 1979-05-27 07:32:00
  name = "b"
  [service.affinity]
  timeout = "3h"
`

func scanAll(doc []byte) positions {
	s := newScanner(doc, positions{})
	for s.next() {
	}
	return s.lines
}

func TestScanFindsLines(t *testing.T) {
	for _, newline := range []string{"\n", "\r\n"} {
		for _, bom := range []string{"", "\ufeff"} {
			at := scanAll([]byte(bom + strings.ReplaceAll(tour, "\n", newline)))
			for path, want := range map[string]int{
				"title": 2, "node": 3, "node.name": 4, `node."odd \"key"`: 6, "service": 7, "service[0]": 7, "service[0].name": 8,
				"service[0].ports[0].port": 9, "service[0].ports[1]": 10, "service[0].ports[1].name": 10,
				"service[0].ports[2]": 12, "service[0].ports[2].port": 12, "service[0].ports[2].name": 13,
				"service[0].labels.team.x": 14, "service[0].backends[0].address": 17, "service[0].backends[1]": 18,
				"service[0].backends[1].address": 19, "service[1]": 20, "service[1].when": 21, "service[1].name": 22,
				"service[1].affinity.timeout": 24,
				// A missing key has the line of the table around it.
				"service[0].ports[1].protocol": 10, "service[1].backends[3].weight": 20, "node.zone": 3, "log.level": 1,
				`service[0].labels."a.b".c`: 14,
			} {
				expect.Equal(t, at.line(path), want, "%s is in line", path)
			}
		}
	}
}

func TestScanRefusesDepth(t *testing.T) {
	const deep = 1 << 20
	for what, doc := range map[string]string{
		"arrays":        "\na = " + strings.Repeat("[", deep),
		"tables":        "\na = " + strings.Repeat("{a=", deep),
		"dots":          "\n" + strings.Repeat("a.", deep) + "a = 1",
		"header":        "\n[" + strings.Repeat("a.", deep) + "a]",
		"quoted header": "\n[[" + strings.Repeat(`"a" . `, deep) + "a]]",
		"dots inside":   "\na = [{" + strings.Repeat("a.", deep) + "a = 1}]",
	} {
		_, problem := Parse("x.toml", []byte(doc))
		if problem == nil || problem.Error() != "x.toml:2: more than 32 levels" {
			t.Errorf("%s: %v", what, problem)
		}
	}
}

// Whatever the TOML reader takes, the scan has walked to its end, and every key
// and item of the tree has a line of its own.
func FuzzScan(f *testing.F) {
	f.Add(tour)
	f.Add("a = [[1, 2], [\"x\", '''y\n''']]\nb.c = {d.e = [{}]}\n[f]\n[[g.h]]\n[[g.h]]\n[g.h.i]\nj=1")
	f.Add("\ufeffa = \"\"\"\\\"\"\"\"\"\"\nb = ''''x'''''")
	f.Add("a = {\n b = 1, # c\n}")
	f.Add("a.b=1\n[[\"\"]]\n'' = 2")
	f.Fuzz(func(t *testing.T, doc string) {
		if err := checkDepth([]byte(doc)); err != nil {
			_, deep := errors.AsType[depthError](err)
			must.True(t, deep, err)
			return
		}
		at := scanAll([]byte(doc))
		tree := map[string]any{}
		if _, err := toml.Decode(doc, &tree); err != nil {
			return
		}
		last := strings.Count(doc, "\n") + 1
		var walk func(path string, v any)
		walk = func(path string, v any) {
			if n := at[path]; path != "" && (n < 1 || n > last) {
				t.Errorf("%s has line %d of %d in\n%s", path, n, last, doc)
			}
			switch v := v.(type) {
			case map[string]any:
				for key, item := range v {
					if strings.Contains(fmt.Sprintf("%q", key), `\`) { // escapes of TOML that Go has not
						continue
					}
					walk(strict.Join(path, key), item)
				}
			default:
				if list := reflect.ValueOf(v); list.IsValid() && list.Kind() == reflect.Slice {
					for i := range list.Len() {
						walk(strict.Index(path, i), list.Index(i).Interface())
					}
				}
			}
		}
		walk("", tree)
	})
}
