package spec

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/ironvip/ironvip/vip/spec/strict"
)

// The examples of RFC 7396, appendix A, that concern objects. Decode treats a null as an omitted key,
// so the comparison does, too.
func TestMergePatchOfTheRFC(t *testing.T) {
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"a":1}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		tree, patch, want := parsed(t, c[0]), parsed(t, c[1]), parsed(t, c[2])
		strict.Merge(tree, patch)
		if withoutNulls(tree); !reflect.DeepEqual(tree, want) {
			t.Errorf("%s with %s is %v, want %s", c[0], c[1], tree, c[2])
		}
	}
}

func parsed(t *testing.T, text string) map[string]any {
	tree, problems := strict.ParseJSON([]byte(text))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return tree
}

func withoutNulls(tree map[string]any) {
	for key, v := range tree {
		if v == nil {
			delete(tree, key)
		} else if sub, ok := v.(map[string]any); ok {
			withoutNulls(sub)
		}
	}
}

// An empty patch changes nothing, and a patch may be applied again.
func TestPatchKeepsTheRest(t *testing.T) {
	s, problems := DecodeJSON([]byte(`{"name":"web","namespace":"default","labels":{"a":"1","b":"2"},"ports":[{"port":"80-90"},{"port":443,"node_port":"auto"}],
		"backends":[{"address":"10.0.0.1","weight":0}],"health":{"type":"http","path":"/"},"affinity":{"timeout":"1h"}}`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	before, _ := json.Marshal(s)
	for patch, want := range map[string]string{
		`{}`:                        string(before),
		`{"name":null}`:             "",
		`{"labels":{"a":null}}`:     "",
		`{"health":{"type":"tcp"}}`: "",
	} {
		p, problems := DecodePatch([]byte(patch))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		once, problems := p.Apply(s)
		again, _ := p.Apply(s)
		if len(problems) > 0 || !reflect.DeepEqual(once, again) {
			t.Errorf("%s: %v, then %v, %v", patch, once, again, problems)
		}
		if got, _ := json.Marshal(once); want != "" && string(got) != want {
			t.Errorf("%s: %s, want %s", patch, got, want)
		}
	}
	if after, _ := json.Marshal(s); string(after) != string(before) {
		t.Errorf("the service was changed: %s", after)
	}
	p, _ := DecodePatch([]byte(`{"labels":{"a":null},"health":{"path":"/x"},"pool":"lan"}`))
	if got, _ := p.Apply(s); len(got.Labels) != 1 || got.Health.Type != "http" || got.Health.Path != "/x" || got.Pool != "lan" || *got.Backends[0].Weight != 0 {
		t.Errorf("%+v", got)
	}
}
