package input

import (
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestFormatOfAText(t *testing.T) {
	for text, want := range map[string]string{
		"---\nname: web\n": ".yaml", "# c\n\nname: web": ".yaml", "services:\n- name: a": ".yaml", "- name: web": ".yaml", "\"name\": web": ".yaml",
		"[[service]]\nname = \"a: b\"": ".toml", "# a: b\n[[service]]": ".toml", "": ".toml", "name = 1": ".toml",
		"[[service]]": ".toml", "[node]": ".toml", "# x": ".toml", "a = 1": ".toml",
		"{}": ".json", " \n[ {": ".json", "[]": ".json", "{\"name\": 1}": ".json", "[{\"name\": 1}]": ".json",
	} {
		for _, name := range []string{"stdin", "file.txt"} {
			expect.Equal(t, format(name, []byte(text)), want, "%q", text)
		}
		for name, want := range map[string]string{"x.toml": ".toml", "x.json": ".json", "x.yaml": ".yaml", "x.yml": ".yaml"} {
			expect.Equal(t, format(name, []byte(text)), want, "%s with %q", name, text)
		}
	}
}

func TestInvalidYAML(t *testing.T) {
	if _, problems := Services("x.yaml", []byte("a: [")); len(problems) != 1 || !strings.Contains(problems[0].Error(), "x.yaml: invalid YAML: ") {
		t.Errorf("%v", problems)
	}
}
