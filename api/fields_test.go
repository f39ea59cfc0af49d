package api

import (
	"encoding/json"
	"reflect"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// A GET returns a service as it was PUT, and a PUT of the result changes nothing. Package spec tests each field.
func TestFieldsAreGotAsTheyWerePut(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		what, body string
		want       map[string]any // in the spec that is got
	}{
		{"a range", `{"ports":[{"port":"10000-10099"}]}`, map[string]any{"ports": []any{map[string]any{"protocol": "tcp", "port": "10000-10099"}}}},
		{"source ranges", `{"ports":[{"port":80}],"source_ranges":["2001:db8::/32","10.0.0.1","10.0.0.0/8","10.0.0.1/32"]}`,
			map[string]any{"source_ranges": []any{"10.0.0.0/8", "10.0.0.1/32", "2001:db8::/32"}}},
		{"a backend of some ports, meant for some clients", `{"ports":[{"port":80,"name":"http"},{"port":81}],"backends":[{"address":"10.0.0.1","ports":["81/tcp","http"],"for_zones":["b","a"],"for_nodes":["n1"]}]}`,
			map[string]any{"backends": []any{map[string]any{"address": "10.0.0.1", "weight": 1.0, "state": "ready",
				"ports": []any{"81/tcp", "http"}, "for_zones": []any{"a", "b"}, "for_nodes": []any{"n1"}}}}},
	} {
		put := r.ask("PUT", webPath, c.body)
		if put.StatusCode != 200 && put.StatusCode != 201 {
			t.Errorf("%s: %s\n%s", c.what, put.Status, put.body)
			continue
		}
		var got struct {
			Spec   map[string]any   `json:"spec"`
			Status v1.ServiceStatus `json:"status"`
		}
		must.Succeed(t, json.Unmarshal(r.ask("GET", webPath, "").body, &got))
		for key, want := range c.want {
			if !reflect.DeepEqual(got.Spec[key], want) {
				t.Errorf("%s: %s is got as %v, want %v", c.what, key, got.Spec[key], want)
			}
		}
		back, err := json.Marshal(decode[v1.Service](r, "GET", webPath, "").Spec) // as a Go client sees it
		if err != nil {
			t.Fatal(err)
		}
		if again := decode[v1.Service](r, "PUT", webPath, string(back)); again.Status.SpecRev != got.Status.SpecRev {
			t.Errorf("%s: putting back what was got is a change:\n%s", c.what, back)
		}
	}
}

// Granted ports are in the status and in the list of leases.
func TestGrantedPortsAreShown(t *testing.T) {
	r := newRig(t)
	svc := decode[v1.Service](r, "PUT", webPath, `{"ports":[{"port":"10000-10099"},{"port":80,"node_port":"auto"}],"external_traffic":"local","health_check_node_port":31000}`)
	expect.Equal(t, svc.Status.Health, 31000, "health port")
	want := []v1.PortStatus{{Name: "10000-10099/tcp", Protocol: "tcp", Port: 10000, LastPort: 10099}, {Name: "80/tcp", Protocol: "tcp", Port: 80, TargetPort: 80, NodePort: 30086}}
	expect.True(t, reflect.DeepEqual(svc.Status.Ports, want), "%+v, want %+v", svc.Status.Ports, want)
	held := map[uint16]string{}
	for _, v := range decode[v1.VIPList](r, "GET", "/v1/vips?kind=node_port", "").Items {
		held[v.NodePort] = v.Holders[0].Port
	}
	if want := map[uint16]string{31000: "health-check", 30086: "80/tcp"}; !reflect.DeepEqual(held, want) {
		t.Errorf("%v, want %v", held, want)
	}
	taken := decode[v1.Service](r, "PUT", "/v1/services/default/other", `{"ports":[{"port":80}],"external_traffic":"local","health_check_node_port":31000}`)
	if p := taken.Status.Problems; len(p) != 1 || p[0].Code != vip.CodePortTaken || p[0].Field != "health_check_node_port" {
		t.Errorf("a taken health port: %+v", p)
	}
}

// Frontends of ranges are listed with all their ports, on every page.
func TestFrontendsOfRanges(t *testing.T) {
	r := newRig(t)
	svc := decode[v1.Service](r, "PUT", webPath, `{"ports":[{"port":"10000-10099"},{"port":"20000-20099"},{"port":9}],
		"source_ranges":["10.0.0.0/8"],"backends":[{"address":"10.0.0.1"}]}`, "Prefer: wait=60")
	var got []string
	for path := "/v1/dataplane/frontends?service=web&limit=1"; ; {
		page := decode[v1.FrontendList](r, "GET", path, "")
		for _, f := range page.Items {
			got = append(got, f.Address+"/"+f.Protocol+" to "+f.Backends[0].Address+" from "+f.Sources[0])
		}
		if page.Next == "" {
			break
		}
		path = "/v1/dataplane/frontends?service=web&limit=1&cursor=" + page.Next
	}
	at := svc.Status.VIPs[0].String()
	want := []string{at + ":9/tcp to 10.0.0.1:9 from 10.0.0.0/8", at + ":10000-10099/tcp to 10.0.0.1 from 10.0.0.0/8", at + ":20000-20099/tcp to 10.0.0.1 from 10.0.0.0/8"}
	expect.True(t, reflect.DeepEqual(got, want), "%q, want %q", got, want)
}
