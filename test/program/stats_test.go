//go:build system || vm

package program

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// stats returns a service's traffic from REST, and that of its only frontend's backends by address.
func (h *host) stats(service string) (total map[string]any, backends map[string]map[string]any) {
	h.t.Helper()
	code, tree := h.rest("GET", "/v1/services/default/"+service+"/stats", "")
	must.Equal(h.t, code, 200, "stats of %s: %d %v", service, code, tree)
	backends = map[string]map[string]any{}
	for _, f := range tree["frontends"].([]any) {
		for _, b := range f.(map[string]any)["backends"].([]any) {
			row := b.(map[string]any)
			backends[row["address"].(string)] = row["traffic"].(map[string]any)
		}
	}
	return tree["traffic"].(map[string]any), backends
}

// carries waits until a service's counters have the wanted values, because the kernel's counters
// lag.
func (h *host) carries(service string, connections, active float64, of map[string]float64) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("%s carried %v connections, %v open", service, connections, active), func() error {
		total, backends := h.stats(service)
		if total["connections"] != connections || total["active_connections"] != active || len(backends) != len(of) {
			return fmt.Errorf("%v, by backend %v", total, backends)
		}
		for addr, n := range of {
			if backends[addr]["connections"] != n {
				return fmt.Errorf("%s: %v", addr, backends[addr])
			}
		}
		return nil
	})
}

func (h *host) scrape() string {
	h.t.Helper()
	resp := must.Get(h.http().Get("http://ironvip/metrics"))(h.t)
	defer resp.Body.Close()
	b := must.Get(io.ReadAll(resp.Body))(h.t)
	return string(b)
}

// countsTraffic: client traffic is counted for the service and for the backend that received it. REST,
// metrics and commands report the same numbers.
func countsTraffic(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.start()
	addr := h.put("web", a, b) + ":8080"
	h.put("idle", a)
	h.carries("web", 0, 0, map[string]float64{a.addr: 0, b.addr: 0})
	if got := answered(t, addr, 4); got["a"] != 2 || got["b"] != 2 {
		t.Fatalf("answered by %v", got)
	}
	open := must.Get(net.Dial("tcp", addr))(t)
	defer open.Close()
	name := must.Get(bufio.NewReader(open).ReadString('\n'))(t)
	of := map[string]float64{a.addr: 2, b.addr: 2}
	of[map[string]string{"a\n": a.addr, "b\n": b.addr}[name]]++
	h.carries("web", 5, 1, of)
	h.carries("idle", 0, 0, map[string]float64{a.addr: 0})

	var total map[string]any
	volume := func(of map[string]any, direction string) map[string]any { return of[direction].(map[string]any) }
	// Each answer is a name and a newline; IPVS counts the packets around it, too. A client may read an answer before it is counted.
	h.eventually("the answers are counted", func() error {
		var backends map[string]map[string]any
		total, backends = h.stats("web")
		if out := volume(total, "out")["bytes"].(float64); out < 5*2 || mode == "proxy" && out != volume(backends[a.addr], "out")["bytes"].(float64)+volume(backends[b.addr], "out")["bytes"].(float64) {
			return fmt.Errorf("%v, by backend %v", total, backends)
		}
		return nil
	})
	list := h.ok("service", "list")
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		if want := map[string]string{"NAME": "CONN", "web": "1", "idle": "0"}[f[0]]; len(f) != 8 || f[6] != want {
			t.Errorf("no %s in %q", want, line)
		}
	}
	labels := fmt.Sprintf(`{frontend="%s/tcp",port="8080/tcp",service="web"}`, addr)
	metrics := h.scrape()
	for _, want := range []string{"ironvip_statistics_up 1\n", "ironvip_service_connections_total" + labels + " 5\n", "ironvip_service_active_connections" + labels + " 1\n"} {
		expect.Contains(t, metrics, want, "no %q in the metrics:\n", want)
	}

	open.Close()
	h.carries("web", 5, 0, of)
	// A removed backend does not reduce its service's counters.
	code, tree := h.rest("DELETE", "/v1/services/default/web/backends/"+b.addr, "", "Prefer", "wait=300")
	must.Equal(t, code/100, 2, "%d %v", code, tree)
	delete(of, b.addr)
	h.carries("web", 5, 0, of)

	// The kernel continues to count while no agent runs. The proxy starts again from zero.
	h.kill()
	h.start()
	before := 5.0
	if mode == "proxy" {
		before, of[a.addr] = 0, 0
	}
	h.carries("web", before, 0, of)
	answered(t, addr, 2)
	of[a.addr] += 2
	h.carries("web", before+2, 0, of)
}

// connectionLine is one line of "dataplane connections -o json".
type connectionLine struct{ Service, Frontend, Client, Backend, State string }

func (h *host) connections() (out []connectionLine) {
	h.t.Helper()
	for line := range strings.Lines(h.ok("dataplane", "connections", "-o", "json")) {
		var c connectionLine
		err := json.Unmarshal([]byte(line), &c)
		must.Succeed(h.t, err, "%v in %q", err, line)
		out = append(out, c)
	}
	return out
}

// listsConnections: the command lists an open connection with its client and backend, and no longer once
// it is closed (with IPVS, it is not established any more).
func listsConnections(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.start()
	addr := h.put("web", a) + ":8080"
	conn := must.Get(net.Dial("tcp", addr))(t)
	defer conn.Close()
	must.Get(bufio.NewReader(conn).ReadString('\n'))(t)
	want := connectionLine{Service: "web", Frontend: addr + "/tcp", Client: conn.LocalAddr().String(), Backend: a.addr, State: "ESTABLISHED"}
	if all := h.connections(); !slices.Contains(all, want) {
		t.Errorf("not listed: %+v, want %+v", all, want)
	}
	conn.Close()
	h.eventually("the closed connection is not established any more", func() error {
		if all := h.connections(); slices.Contains(all, want) {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
}
