package fleet

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

func FuzzMark(f *testing.F) {
	f.Add([]byte(encodeMark("ABC")))
	f.Add([]byte(`{"v":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decodeMark(text)
		if err == nil && m.Fleet == "" {
			t.Error("a fleet without a name")
		}
	})
}

// Decoding a value at once and step by step gives the same result.
func FuzzValue(f *testing.F) {
	for _, text := range []string{
		`{"v":1,"value":{"name":"x","more":[{"at":"2026-01-02T03:04:05Z","n":3}]}}`,
		`{"v":1,"value":{"name":"x"}} {}`,
		`{"v":1,"value":{"name":"x"}} `,
		`{"v":1,"value":{"name":"x"},"value":{"more":null}}`,
		`{"v":1,"value":{"name":"x","name":"y"},"of":"a newer release"}`,
		`{"V":1,"Value":{"NAME":"x"}}`,
		`{"v":1,"value":{"of":{"a":1e300,"b":null},"by":{"::1":["2026-01-02T03:04:05+01:00"]},"raw":"/w==","yes":true}}`,
		`{"v":1,"value":{"of":{"a":1,"a":2},"by":{"192.0.2.1":[],"192.0.2.01":null},"raw":null,"yes":null,"name":null}}`,
		`{"v":1,"value":{"name":"é","raw":"/w","by":{}}}`,
		`{"v":1,"value":{"name":"\ud800ÿ","odd":1}}`,
		`{"v":null,"value":{}}`,
		`{"v":2,"value":{}}`,
		`{"v":1,"value":null}`,
		`{"v":1,"value":{"more":[{"n":1e2}]}}`,
		`{"v":1,"value":{"more":[{"n":1,"n":2},null]}}`,
	} {
		f.Add([]byte(text))
	}
	type value struct {
		Name string                     `json:"name"`
		Of   map[string]*float64        `json:"of,omitempty"`
		By   map[netip.Addr][]time.Time `json:"by"`
		Raw  []byte                     `json:"raw"`
		Yes  bool                       `json:"yes"`
		More []struct {
			At *time.Time `json:"at"`
			N  int        `json:"n"`
		} `json:"more"`
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := decodeValue[value](text, 1)
		want, wantErr := explainValue[value](text, 1)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || err == nil && !reflect.DeepEqual(*got, want) {
			t.Errorf("%s is %+v, %v; step by step %+v, %v", text, got, err, want, wantErr)
		}
	})
}

func TestTombstonesAreDropped(t *testing.T) {
	g := tombstones{index: map[string]uint64{}}
	g.add("a", 1)
	g.add("b", 2)
	g.add("a", 3)
	g.drop(2)
	if len(g.index) != 1 || g.index["a"] != 3 || len(g.queue) != 1 {
		t.Errorf("%+v", g)
	}
	g.drop(3)
	if len(g.index) != 0 || len(g.queue) != 0 {
		t.Errorf("%+v", g)
	}
}
