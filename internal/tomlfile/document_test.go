package tomlfile

import "testing"

// A problem has the line of the mistake, also if it is the end of this line that the TOML reader refuses.
func TestLineOfAMistake(t *testing.T) {
	const bom = "\xef\xbb\xbf"
	for text, place := range map[string]string{
		"a = 1\n\n[[service]\nname = 'x'\n":          "f.toml:3",
		"[[service]\r\nname = 'x'\r\n":               "f.toml:1",
		bom + "[[service]\n\n\n":                     "f.toml:1",
		"[[service]\n":                               "f.toml:1",
		"[[service]":                                 "f.toml:1",
		"[[service]]\n[service.health\ntype = 'x'\n": "f.toml:2",
		"[a.\nb]\n":                                  "f.toml:1",
		"a = 1\nb = 'x\nc = 2\n":                     "f.toml:2",
		"a = 1\nb =\nc = 2\n":                        "f.toml:2",
		"a = 1\nb":                                   "f.toml:2",
		"a = 1\nb = 'x":                              "f.toml:2",
		"a = [1,\nb = 2\n":                           "f.toml:2",
		"a = {\n b = 1\n\n c = 2 }\n":                "f.toml:4",
		"a = \"\"\"x\n\\q\ny\"\"\"\n":                "f.toml:2",
		"a = \"\"\"x\ny\n":                           "f.toml:2",
		"a = 1\na = 2\n":                             "f.toml:2",
		"= 1\n":                                      "f.toml:1",
		"a = 1\nb = 1979-13-01\n":                    "f.toml:2",
	} {
		if _, problem := Parse("f.toml", []byte(text)); problem == nil || problem.Place != place {
			t.Errorf("%q: %v, want %s", text, problem, place)
		}
	}
}
