package v1

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip/spec"
)

var update = flag.Bool("update", false, "rewrite the golden files: only for additions, never for a change of what is there")

// The JSON of version 1 is stable: each type with every field set equals its golden file. A new
// field shows as an added line.
func TestJSONIsStable(t *testing.T) {
	for _, v := range []any{ProblemDocument{}, Service{}, ServiceList{}, Deleted{}, Explanation{}, ApplyRequest{}, ApplyResult{},
		BackendSpec{}, Backend{}, BackendList{}, StateSpec{}, OverrideList{}, NodeStatus{}, Health{}, VIPList{}, PoolList{}, SourceList{}, NodeList{}, EventList{}, AnnouncementList{}, AnnouncePeerList{}, DNSNameList{}, DNSAnswer{}, NodeDrain{}, Token{}, TokenList{}, Whoami{}, SessionSpec{}, SearchResult{},
		Dataplane{}, FrontendList{}, DataplaneDiff{}, RepairResult{}, SwitchPlan{}, ServiceStats{}, StatsList{}, BackendConnections{}, Connection{}, ServiceChange{}, Top{}, DebugTableList{}, DebugTable{}, Plan{}, ValidateResult{}, ReloadResult{}} {
		kind := reflect.TypeOf(v)
		t.Run(kind.Name(), func(t *testing.T) {
			full := reflect.New(kind)
			fill(full.Elem(), "x")
			got := must.Get(json.MarshalIndent(full.Interface(), "", "  "))(t)
			got = append(got, '\n')
			path := filepath.Join("testdata", kind.Name()+".json")
			if *update {
				must.Succeed(t, os.WriteFile(path, got, 0o644))
			}
			want := must.Get(os.ReadFile(path))(t)
			expect.True(t, bytes.Equal(got, want), "got:\n%s\nwant:\n%s", got, want)
			back := reflect.New(kind)
			if err := json.Unmarshal(got, back.Interface()); err != nil {
				t.Errorf("read back: %v", err)
			} else if !reflect.DeepEqual(back.Interface(), full.Interface()) {
				t.Errorf("read back:\n%+v\nwritten:\n%+v", back.Elem(), full.Elem())
			}
		})
	}
}

// fill sets every field; strings become the field's name.
func fill(v reflect.Value, name string) {
	switch p := v.Addr().Interface().(type) {
	case *time.Time:
		*p = time.Date(2026, 11, 8, 12, 1, 7, 0, time.UTC)
		return
	case *netip.Addr:
		*p = netip.MustParseAddr("192.0.2.10")
		return
	case *netip.Prefix:
		*p = netip.MustParsePrefix("192.0.2.0/24")
		return
	case *spec.Duration:
		*p = spec.Duration(90 * time.Second)
		return
	case *spec.PortRange:
		p.First = 7
		return
	case *spec.NodePort:
		p.Auto = true
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(7.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), name)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), name)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"key": "value"}))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("json") == "-" {
				continue
			}
			fill(v.Field(i), v.Type().Field(i).Name)
		}
	default:
		panic("no filling of " + v.Type().String())
	}
}

func TestPathsEscape(t *testing.T) {
	for got, want := range map[string]string{
		BackendPath("default", "web", "[2001:db8::1]:80"): "/v1/services/default/web/backends/%5B2001:db8::1%5D:80",
		HeartbeatPath("a/b", "w", "10.0.0.1"):             "/v1/services/a%2Fb/w/backends/10.0.0.1/heartbeat",
		ResyncPath("a b"):                                 "/v1/sources/a%20b/resync",
	} {
		expect.Equal(t, got, want)
	}
}
