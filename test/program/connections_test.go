//go:build system || vm

package program

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
)

// connectionLine is one line of "dataplane connections -o json".
type connectionLine struct{ Service, Frontend, Client, Backend, State string }

func (h *host) connections(args ...string) (out []connectionLine) {
	h.t.Helper()
	for line := range strings.Lines(h.ok(append([]string{"dataplane", "connections", "-o", "json"}, args...)...)) {
		var c connectionLine
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			h.t.Fatalf("%v in %q", err, line)
		}
		out = append(out, c)
	}
	return out
}

// The command lists an open connection with its client and backend, and no longer once it is closed
// (with IPVS, it is not established any more).
func TestConnectionsAreListed(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.start()
	addr := h.put("web", a) + ":8080"
	h.put("idle", a)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	want := connectionLine{Service: "web", Frontend: addr + "/tcp", Client: conn.LocalAddr().String(), Backend: a.addr, State: "ESTABLISHED"}
	open := func(args ...string) bool {
		for _, c := range h.connections(args...) {
			if c == want {
				return true
			}
		}
		return false
	}
	if !open() || !open("--service", "web", "--limit", "0") {
		t.Errorf("not listed: %+v, want %+v", h.connections(), want)
	}
	if got := h.connections("--service", "idle"); len(got) != 0 {
		t.Errorf("of a service without clients: %+v", got)
	}
	if out := h.ok("dataplane", "connections"); !strings.Contains(out, want.Client) || !strings.Contains(out, "CLIENT") {
		t.Errorf("the table:\n%s", out)
	}
	conn.Close()
	h.eventually("the closed connection is not established any more", func() error {
		if open() {
			return fmt.Errorf("%+v", h.connections())
		}
		return nil
	})
	if r := h.cli("dataplane", "connections", "--service", "none"); r.code != 4 {
		t.Errorf("of no service: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}
